"""The model of all tasks: one encoder and the heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone.base import Backbone
from palm.backbone.low_rank import FROM, LowRank, new_adapters
from palm.backbone.packing import joined_layout
from palm.core.device import Precision, computing
from palm.core.errors import ConfigError, Problem, StorageError, WiringError
from palm.core.layers import generator
from palm.core.saved import Tensors, as_declared
from palm.paradigm.base import Head
from palm.pretrained.peft import read_adapters
from palm.train.task import Task

Names = Sequence[Sequence[str]]
"""Per batch, the features that its head reads."""


def joint_outputs(
    encoders: Sequence[Backbone],
    heads: Sequence[Head],
    batches: Sequence[Tensors],
    rows_of: Sequence[int],
    precision: Precision = "fp32",
) -> list[Tensors]:
    """Compute the outputs of the heads on their batches, which are encoded together if possible.

    Args:
        encoders: one per batch. Different encoders, and encoders whose inputs or features are not padded
            rows of tokens, encode batch by batch.
        heads: one per batch; each reads its features as it declares them, in float32 with any precision.
        batches: the batches, on the device of encoders and heads.
        rows_of: per batch, the index of the first batch with the same rows, which are encoded once.
        precision: fp32 or bf16.

    Returns:
        The outputs of each head.
    """
    device = next(iter(batches[0].values())).device
    wanted = [
        [name for name in head.inputs_attr if name in encoder.outputs_attr]
        for encoder, head in zip(encoders, heads, strict=True)
    ]
    batches = [as_declared(batch, encoders[0].inputs_attr) for batch in batches]
    with computing(precision, device):
        if all(each is encoders[0] for each in encoders) and _can_be_joined(encoders[0], wanted, rows_of):
            features = _encode_together(encoders[0], wanted, batches, rows_of)
        else:
            features = _encode_separately(encoders, wanted, batches, rows_of)
    outputs = []
    for head, batch, encoded in zip(heads, batches, features, strict=True):
        # Inputs of a head that are not features of the encoder, such as positions of masked tokens, are taken
        # from the batch.
        specs = head.inputs_attr
        taken = {n: encoded[n].to(spec.dtype) if n in encoded else batch[n] for n, spec in specs.items()}
        with computing(precision if head.computes_in_bf16 else "fp32", device):
            outputs.append(head(as_declared(taken, specs)))
    return outputs


def _can_be_joined(backbone: Backbone, wanted: Names, rows_of: Sequence[int]) -> bool:
    """Check whether rows of several batches can be padded to one length and encoded as one batch."""
    read = {name for names in wanted for name in names}
    inputs = backbone.inputs_attr
    takes_rows = "input_mask" in inputs and all(spec.shape == ("batch", "seq") for spec in inputs.values())
    shapes = [backbone.outputs_attr[name].shape for name in read]
    gives_rows = all(shape[0] == "batch" or not {"batch", "seq"} & {*shape} for shape in shapes)
    # A feature whose first dimension is not the batch could not be split into batches again.
    return len(set(rows_of)) > 1 and takes_rows and gives_rows


def _encode_separately(
    encoders: Sequence[Backbone], wanted: Names, batches: Sequence[Tensors], rows_of: Sequence[int]
) -> list[Tensors]:
    """Encode batch by batch, but equal rows only once per encoder."""
    # Ids can serve as keys, because `encoders` keeps all of them alive.
    keys = [(rows, id(encoder)) for rows, encoder in zip(rows_of, encoders, strict=True)]
    passes: dict[tuple[int, int], Tensors] = {}
    for key, encoder, batch in zip(keys, encoders, batches, strict=True):
        if key not in passes:
            read = {name for other, names in zip(keys, wanted, strict=True) if other == key for name in names}
            passes[key] = encoder(batch, sorted(read))
    return [passes[key] for key in keys]


def _encode_together(
    backbone: Backbone, wanted: Names, batches: Sequence[Tensors], rows_of: Sequence[int]
) -> list[Tensors]:
    """Encode all rows in one pass."""
    distinct = sorted(set(rows_of))
    # Padding has no effect, and a packed encoder does not compute it, so two batches of 16 rows cost as much
    # as one of 32 even if their lengths differ.
    sizes = {k: tuple(batches[k]["input_mask"].shape) for k in distinct}
    longest = max(columns for _, columns in sizes.values())
    joined = {
        name: torch.cat([F.pad(batches[k][name], (0, longest - sizes[k][1])) for k in distinct])
        for name in backbone.inputs_attr
    }
    if backbone.is_packed:
        joined |= joined_layout([batches[k] for k in distinct], longest)
    ends = dict(zip(distinct, accumulate(rows for rows, _ in sizes.values()), strict=True))
    rows = [slice(ends[k] - sizes[k][0], ends[k]) for k in rows_of]
    encoded = backbone(joined, sorted({name for names in wanted for name in names}))
    return [_of_rows(backbone, encoded, own, sizes[k][1]) for own, k in zip(rows, rows_of, strict=True)]


def _of_rows(backbone: Backbone, features: Tensors, rows: slice, columns: int) -> Tensors:
    """Slice features to some rows and columns; a table, which has no rows, is returned whole."""
    own = {}
    for name, value in features.items():
        shape = backbone.outputs_attr[name].shape
        value = value[rows] if shape[0] == "batch" else value
        # Sliced to the batch's longest row, so the head sees the same as with a separate pass.
        own[name] = value[:, :columns] if shape[:2] == ("batch", "seq") else value
    return own


LORA = "lora."
"""Prefix of the parameters of tasks' own adapters."""


def _key(task: str) -> str:
    # "@" avoids clashes with attributes of modules (a task may be called `train` or `type`). Dots, which
    # separate module names, are percent-encoded.
    return "@" + task.replace("%", "%25").replace(".", "%2E")


def head_places(heads: Mapping[str, Head]) -> dict[str, str]:
    """Return task -> the prefix of its head's weights; one head of several tasks has that of the first."""
    owners: dict[Head, str] = {}
    return {task: owners.setdefault(head, f"heads.{_key(task)}") for task, head in heads.items()}


class MultiTaskModel(nn.Module):
    """The shared encoder with the heads of all tasks; a step runs only the heads of the drawn tasks.

    Args:
        backbone: the shared encoder.
        tasks: each head is registered once, under the first task that uses it.
        precision: precision of forward and backward; parameters and losses are float32.

    Attributes:
        head_places: task -> the prefix of its head in `state_dict`; the same for tasks that share a head.
        lora: task -> its own adapters on the encoder, if it has any.
    """

    def __init__(
        self,
        backbone: Backbone,
        tasks: Sequence[Task],
        precision: Precision = "fp32",
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.precision = precision
        self.heads = nn.ModuleDict()
        self.head_places = head_places({task.name: task.head for task in tasks})
        self._tasks = {task.name: task for task in tasks}
        for task in tasks:
            task.head.adapt(backbone.head_layers)
            self.heads[self.head_places[task.name].removeprefix("heads.")] = task.head
        self.lora = nn.ModuleDict()
        for task in tasks:
            try:
                if task.lora is not None:
                    self.lora[_key(task.name)] = adapters_of(task.name, task.lora, backbone)
            except ConfigError as error:
                raise ConfigError(
                    Problem(f"task {task.name!r}: {line}", "lora", task.name) for line in error.problems
                ) from None

    def parameter_layers(self) -> list[list[str]]:
        """Return the names of the parameters of the embeddings, then of each layer of the encoder.

        Raises:
            ConfigError: the encoder does not declare its layers.
        """
        return [[f"backbone.{name}" for name in names] for names in self.backbone.parameter_layers()]

    def encoder(self, task: str, merged: bool = True) -> Backbone:
        """Return the encoder of a task: the shared one, with the task's adapters if it has any.

        Args:
            task: the name of the task.
            merged: merge adapters into the weights, in their current state; otherwise gradients reach them.
        """
        adapters = self.adapters(task)
        if adapters is None:
            return self.backbone
        return adapters.merged_into(self.backbone) if merged else adapters.applied_to(self.backbone)

    def adapters(self, task: str) -> LowRank | None:
        """Return the task's own adapters, if it has any."""
        key = _key(task)
        return self.lora[key] if key in self.lora else None  # type: ignore[return-value] # noqa: SIM401

    def head(self, task: str) -> Head:
        """Return the head of a task."""
        return self._tasks[task].head

    def forward(self, tasks: Sequence[str], batches: Sequence[Tensors]) -> Tensor:
        """Compute the mean loss of each task on its batch, [tasks]; for predictions see `outputs_of`."""
        heads = [self.head(name) for name in tasks]
        sources = [self._tasks[name].share_rows_with or name for name in tasks]
        # Index of the first task with the same rows, which the encoder computes once.
        rows_of = [sources.index(source) for source in sources]
        encoders = [self.encoder(name, merged=False) for name in tasks]
        outputs = joint_outputs(encoders, heads, batches, rows_of, self.precision)
        losses = [head.loss(made, own) for head, made, own in zip(heads, outputs, batches, strict=True)]
        return torch.stack(losses)


def adapters_of(task: str, lora: Mapping[str, Any], backbone: Backbone) -> LowRank:
    """Return the adapters that a task's setting `lora` describes; torch's seed initializes A in new ones.

    Raises:
        ConfigError: the encoder has no such layers, or the directory has no adapters for them.
    """
    if FROM in lora:
        try:
            return read_adapters(backbone, Path(lora[FROM]))
        except StorageError as error:
            raise ConfigError(f"lora: {error}") from None
    return new_adapters(backbone, lora, int(generator(torch.initial_seed(), "lora", task).integers(2**63)))


def share_parameters(source: nn.Module, target: nn.Module) -> None:
    """Replace the parameters and buffers of `target` by those of `source`, which both then share.

    Raises:
        WiringError: they differ in names or shapes.
    """
    theirs, ours = (
        {name: tuple(value.shape) for name, value in module.state_dict().items()}
        for module in (source, target)
    )
    if different := sorted(name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)):
        raise WiringError(
            f"{type(target).__name__} for prediction does not match the trained {type(source).__name__}; "
            f"they differ in {', '.join(different[:6])}"
        )
    for module, trained in zip(target.modules(), source.modules(), strict=True):
        # The same tensors, so later steps update both; `load_state_dict` would copy values.
        module._parameters.update(trained._parameters)
        module._buffers.update(trained._buffers)


@contextmanager
def restored_modes(*modules: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of every module afterwards."""
    before = [(module, module.training) for owner in modules for module in owner.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def outputs_of(backbone: Backbone, head: Head, batch: Tensors, precision: Precision = "fp32") -> Tensors:
    """Compute one head's outputs on a batch; the backbone computes only the features that the head reads."""
    return joint_outputs([backbone], [head], [batch], [0], precision)[0]
