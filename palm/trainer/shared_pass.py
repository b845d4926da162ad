"""Joint prediction: one pass of what tasks share of the encoder, for all heads that read the same batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from palm.backbone import Backbone
from palm.backbone.encoder import Encoder
from palm.backbone.packing import LAYOUT, Packing
from palm.core.tensor_specs import Tensors
from palm.paradigm import Head


class SharedPass(nn.Module):
    """Keeps what the encoder made of the last batch, for the next head that reads it.

    Args:
        backbone: the encoder.
        heads: task -> its head.
        own: task -> how many of the topmost layers are its own.
    """

    def __init__(self, backbone: Backbone, heads: Mapping[str, Head], own: Mapping[str, int]) -> None:
        super().__init__()
        self.backbone = backbone
        given = backbone.outputs_attr.keys()
        self.wanted = {task: head.inputs_attr.keys() & given for task, head in heads.items()}
        self.own = {task: count for task, count in own.items() if count > 0}
        self._inputs: Tensors = {}
        self._trunk: tuple[Tensor, Packing] | None = None
        self._outputs: Tensors | None = None
        self._weights: object = None

    def at(self, weights: object) -> None:
        """Forget the last batch if `weights`, which stands for the weights, has another value than before."""
        if weights != self._weights:
            self._weights = weights
            self._inputs = {}

    def of(self, task: str, encoder: Backbone) -> Backbone:
        """The encoder of a task, of which nothing runs twice on the same batch."""
        return _OfTask(self, task, encoder)

    def outputs(self, task: str, encoder: Backbone, inputs: Tensors) -> Tensors:
        """Return the outputs of the task's encoder, at least those that its head reads."""
        if not are_equal(inputs, self._inputs):
            self._inputs = inputs
            self._trunk = None
            self._outputs = None
        if task in self.own:
            return self._encoded(encoder, inputs, self.wanted[task])
        if self._outputs is None:
            # Tasks without layers of their own have one encoder, which computes for all of them at once.
            wanted = {output for name in self.wanted.keys() - self.own for output in self.wanted[name]}
            self._outputs = self._encoded(encoder, inputs, wanted)
        return self._outputs

    def _encoded(self, encoder: Backbone, inputs: Tensors, wanted: Collection[str]) -> Tensors:
        if not self.own or "word_embedding" in wanted:
            return encoder(inputs, wanted)  # type: ignore[no-any-return]
        assert isinstance(encoder, Encoder)
        depth = len(encoder.layers) - max(self.own.values())
        if self._trunk is None:
            self._trunk = encoder.trunk(inputs, depth)
        return encoder.above(self._trunk, wanted, depth)


class _OfTask(Backbone):
    """A task's encoder as its head, and whoever predicts, knows it."""

    def __init__(self, shared: SharedPass, task: str, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder
        self.task = task
        self.inputs_attr = encoder.inputs_attr
        self.outputs_attr = encoder.outputs_attr
        self.is_packed = encoder.is_packed
        self._shared = [shared]  # in a list: it is no part of this module

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        given = {name: value for name, value in inputs.items() if name in {*self.inputs_attr, *LAYOUT}}
        outputs = self._shared[0].outputs(self.task, self.encoder, given)
        return {name: outputs[name] for name in (outputs if wanted is None else wanted)}


def are_equal(one: Tensors, other: Tensors) -> bool:
    """True if two batches have the same tensors; a GPU is waited for once."""
    if {name: value.shape for name, value in one.items()} != {n: value.shape for n, value in other.items()}:
        return False
    differences = [(value != other[name]).any() for name, value in one.items()]
    return not bool(torch.stack(differences).any())


def versions(module: nn.Module) -> list[tuple[int, int]]:
    """Return a value that changes when parameters of `module` are loaded."""
    return [(id(parameter), parameter._version) for parameter in module.parameters()]
