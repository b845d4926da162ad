"""An encoder with heads as one function of a batch, without shapes that depend on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from palm.backbone import Backbone
from palm.backbone.packing import Padded
from palm.backbone.token_encoder import TokenEncoder
from palm.core.errors import PalmError
from palm.core.numerics.rng import generator
from palm.core.tensor_specs import Specs, Tensors, as_declared
from palm.paradigm import Head
from palm.reader import Reader
from palm.train.model import outputs_of

INPUTS = {"token_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
"""Our name -> the input's name in the graph, as in Hugging Face models; other inputs keep our name."""

COMPUTED = ("position_ids", "task_ids", "word_mask")
"""Inputs that a graph can compute by itself, so callers need not provide them."""


class Graph(nn.Module):
    """An encoder with heads, from a reader's batch to the outputs of the heads.

    Args:
        backbone: the encoder that all heads share.
        heads: task -> its head.
        specs: the tensors in batches (see `batch_specs`).
        outputs: name in the graph -> task and output of its head.
        task_id: id for ERNIE's task embedding; the graph then computes all of `COMPUTED`. None for a graph
            that reads them.

    Attributes:
        inputs: name in a batch -> spec, of all inputs; all of them are int64 in the graph.

    Raises:
        PalmError: the backbone or a head reads an input that is not in `specs` or not of integers.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: Mapping[str, Head],
        specs: Specs,
        outputs: Mapping[str, tuple[str, str]],
        task_id: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(heads.values())
        self.by_task = dict(heads)
        self.outputs = outputs
        self.task_id = task_id
        read = [name for head in heads.values() for name in head.inputs_attr]
        self._features = [name for name in backbone.outputs_attr if name in read]
        needed = dict.fromkeys(
            [*backbone.inputs_attr, *(name for name in read if name not in self._features)]
        )
        if task_id is not None:
            needed = dict.fromkeys(["token_ids", "input_mask", *(n for n in needed if n not in COMPUTED)])
        for name in needed:
            if name not in specs or specs[name].dtype not in (torch.long, torch.bool):
                raise PalmError(f"{self.title}: the input {name!r} is not supported in an ONNX graph")
        self.inputs = {name: specs[name] for name in needed}

    @property
    def title(self) -> str:
        """Class names of the encoder and the heads, for messages."""
        return ", ".join(dict.fromkeys(type(part).__name__ for part in (self.backbone, *self.heads)))

    @property
    def shapes(self) -> dict[str, tuple[str | int, ...]]:
        """Shapes of all inputs by their names in the graph."""
        return {INPUTS.get(name, name): spec.shape for name, spec in self.inputs.items()}

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of `outputs`.

        Args:
            inputs: tensors with the names and shapes of `shapes`, int64.
        """
        batch = {name: inputs[INPUTS.get(name, name)].to(spec.dtype) for name, spec in self.inputs.items()}
        if self.task_id is not None:
            ids = batch["token_ids"]
            mask = batch["input_mask"]
            batch["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand_as(ids) * mask
            batch["task_ids"] = torch.full_like(ids, self.task_id)
            batch["word_mask"] = mask  # its values only matter for decoding
        features = batch | padded_features(self.backbone, batch, self._features)
        outputs = {}
        for task, head in self.by_task.items():
            read = {name: features[name] for name in head.inputs_attr}
            outputs[task] = head(as_declared(read, head.inputs_attr))
        return tuple(outputs[task][name] for task, name in self.outputs.values())

    def arrays(self, batch: Tensors) -> dict[str, npt.NDArray[np.int64]]:
        """Return the graph's inputs for a batch; inputs that only other tasks have are empty or zero."""
        missing = {
            name: torch.zeros([0] if len(spec.shape) == 1 else [len(batch["input_mask"]), 1])
            for name, spec in self.inputs.items()
        }
        return {INPUTS.get(name, name): (missing | batch)[name].long().numpy() for name in self.inputs}

    @torch.no_grad()
    def difference(self, session: Any, task: str, batch: Tensors) -> float:
        """Return the largest absolute difference between a session's outputs and PyTorch's, without padding.

        Args:
            session: a session of onnxruntime for this graph.
            task: the task whose outputs are compared.
            batch: a batch of the task's reader.
        """
        head = self.by_task[task]
        expected = outputs_of(self.backbone.eval(), head.eval(), batch)
        names = {theirs: ours for theirs, (owner, ours) in self.outputs.items() if owner == task}
        arrays = session.run(list(names), self.arrays(batch))
        mask = batch["input_mask"]
        largest = 0.0
        for ours, array in zip(names.values(), arrays, strict=True):
            if array.shape != expected[ours].shape:
                return float("inf")
            errors = (expected[ours].double() - torch.from_numpy(array).double()).abs()
            largest = max(largest, float((errors[mask] if errors.shape[:2] == mask.shape else errors).max()))
        return largest


def padded_features(backbone: Backbone, batch: Tensors, wanted: Sequence[str]) -> Tensors:
    """Compute `backbone(batch, wanted)` without packing, which depends on values."""
    if isinstance(backbone, TokenEncoder):
        return backbone.features(batch, Padded.of(batch["input_mask"]), wanted)
    features: Tensors = backbone(as_declared(batch, backbone.inputs_attr), wanted)
    return features


def batch_specs(*readers: Reader) -> Specs:
    """Return the specs of these readers' tensors, except those that `random_batch` does not have."""
    known = random_batch(readers[0], 1)
    return {name: spec for reader in readers for name, spec in reader.outputs_attr.items() if name in known}


def random_batch(reader: Reader, num_rows: int) -> Tensors:
    """Make a batch of random tokens and lengths, with every tensor that palm's readers produce."""
    draw = generator(0, "export")
    shape = (num_rows, reader.settings["max_seq_len"])
    lengths = draw.integers(1, shape[1] + 1, (num_rows, 1))
    mask = torch.from_numpy(np.arange(shape[1]) < lengths)
    return {
        "token_ids": torch.from_numpy(draw.integers(reader.vocab_size, size=shape)),
        "position_ids": torch.arange(shape[1]) * mask,
        "segment_ids": torch.from_numpy(np.arange(shape[1]) * 2 > lengths) * mask.long(),
        "task_ids": reader.settings.get("task_id", 0) * mask.long(),
        "input_mask": mask,
        "word_mask": mask,
        "word_starts": torch.arange(1, shape[1] // 2 + 1) * mask[:, 1 : shape[1] // 2 + 1],
        "mask_pos": torch.arange(num_rows) * shape[1],
        "group_rows": torch.arange(num_rows)[:, None],
    }
