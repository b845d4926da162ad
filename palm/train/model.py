"""The shared backbone with the heads of all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.base import Backbone
from palm.backbone.low_rank import FROM, LowRank, new_adapters
from palm.core.errors import ConfigError, Problem, StorageError, WiringError
from palm.core.numerics.precision import Precision
from palm.core.numerics.rng import generator
from palm.core.tensor_specs import Tensors
from palm.paradigm.base import Head
from palm.pretrained.peft import read_adapters
from palm.train.joint_pass import joint_outputs
from palm.train.task import Task

PRIVATE = "private."
"""Prefix of the parameters of tasks' own layers."""

LORA = "lora."
"""Prefix of the parameters of tasks' own adapters."""


def _escaped(task: str) -> str:
    return task.replace("%", "%25").replace(".", "%2E")


class MultiTaskModel(nn.Module):
    """The shared encoder with the heads of all tasks; a step runs only the heads of the drawn tasks.

    Args:
        backbone: the shared encoder.
        tasks: each head is registered once, under the first task that uses it.
        precision: precision of forward and backward; parameters and losses are float32.
        own_layers: task -> its own layers or adapters, if they are not new.

    Attributes:
        head_places: task -> the prefix of its head in `state_dict`; the same for tasks that share a head.
        private: task -> its own topmost layers of the encoder, if it has any.
        lora: task -> its own adapters on the encoder, if it has any.
    """

    def __init__(
        self,
        backbone: Backbone,
        tasks: Sequence[Task],
        precision: Precision = "fp32",
        own_layers: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.precision = precision
        self.heads = nn.ModuleDict()
        self.head_places: dict[str, str] = {}
        self._tasks = {task.name: task for task in tasks}
        self._keys = {task.name: f"@{_escaped(task.name)}" for task in tasks}
        keys: dict[Head, str] = {}
        for task in tasks:
            # "@" avoids clashes with attributes of modules (a task may be called `train` or `type`). Dots,
            # which separate module names, are percent-encoded.
            key = keys.setdefault(task.head, self._keys[task.name])
            task.head.adapt(backbone.head_layers)
            self.heads[key] = task.head
            self.head_places[task.name] = f"heads.{key}"
        self.private = nn.ModuleDict()
        self.lora = nn.ModuleDict()
        for task in tasks:
            key = self._keys[task.name]
            try:
                if task.private_layers:
                    self.private[key] = own_layers.get(task.name) or backbone.copied_top(task.private_layers)
                if task.lora is not None:
                    own = own_layers.get(task.name)
                    self.lora[key] = own or adapters_of(task.name, task.lora, backbone)
            except ConfigError as error:
                setting = "private_layers" if task.private_layers else "lora"
                raise ConfigError(
                    Problem(f"task {task.name!r}: {line}", setting, task.name) for line in error.problems
                ) from None

    def parameter_layers(self) -> list[list[str]]:
        """Return the names of the parameters of the embeddings, then of each layer of the encoder.

        Raises:
            ConfigError: the encoder does not declare its layers.
        """
        layers = [[f"backbone.{name}" for name in names] for names in self.backbone.parameter_layers()]
        for key, top in self.private.items():
            assert isinstance(top, nn.ModuleDict)
            upper = top["layers"]
            assert isinstance(upper, nn.ModuleList)
            for number, layer in enumerate(upper):
                names = [name for name, _ in layer.named_parameters()]
                place = f"{PRIVATE}{key}.layers.{number}"
                layers[number - len(upper)] += [f"{place}.{name}" for name in names]
        return layers

    def encoder(self, task: str, merged: bool = True) -> Backbone:
        """Return the encoder of a task: the shared one, with the task's own layers or adapters if it has any.

        Args:
            task: the name of the task.
            merged: merge adapters into the weights, in their current state; otherwise gradients reach them.
        """
        adapters = self.adapters(task)
        if adapters is not None:
            return adapters.merged_into(self.backbone) if merged else adapters.applied_to(self.backbone)
        top = self.top(task)
        return self.backbone if top is None else self.backbone.with_top(top)

    def top(self, task: str) -> nn.ModuleDict | None:
        """Return the task's own layers of the encoder, if it has any."""
        key = self._keys[task]
        return self.private[key] if key in self.private else None  # type: ignore[return-value] # noqa: SIM401

    def adapters(self, task: str) -> LowRank | None:
        """Return the task's own adapters, if it has any."""
        key = self._keys[task]
        return self.lora[key] if key in self.lora else None  # type: ignore[return-value] # noqa: SIM401

    def own_layers(self, task: str) -> nn.Module | None:
        """Return the task's own layers or its adapters, if it has any."""
        return self.top(task) or self.adapters(task)

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
