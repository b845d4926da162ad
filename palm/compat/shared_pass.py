"""Joint prediction: one encoder pass for all heads that read the same batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import nn

from palm.backbone import Backbone
from palm.backbone.packing import LAYOUT
from palm.core.tensor_specs import Tensors, as_declared
from palm.paradigm import Head
from palm.train.loop import placed


class SharedPass(Backbone):
    """An encoder that keeps its outputs for the last batch, for the next head that reads it.

    Args:
        encoder: the wrapped encoder.
        heads: the heads that read from it; the outputs that any of them needs are computed together.
    """

    def __init__(self, encoder: Backbone, heads: Iterable[Head]) -> None:
        super().__init__()
        self.encoder = encoder
        self.inputs_attr = encoder.inputs_attr
        self.outputs_attr = encoder.outputs_attr
        self.is_packed = encoder.is_packed
        self._wanted = {name for head in heads for name in head.inputs_attr} & encoder.outputs_attr.keys()
        self._host: Tensors = {}
        self._sent: Tensors = {}
        self._inputs: Tensors = {}
        self._outputs: Tensors = {}
        self._weights: object = None

    def at(self, weights: object) -> None:
        """Forget the last batch if `weights`, a value that identifies the weights, has changed."""
        if weights != self._weights:
            self._weights = weights
            self._inputs = {}

    def placed(self, batch: Tensors, device: torch.device, backbone: Backbone) -> Tensors:
        """Send a batch as `device_transfer.placed` does; consecutive equal inputs are the same tensors."""
        host = {name: value for name, value in batch.items() if name in self.inputs_attr}
        sent = as_declared(placed(batch, device, backbone), self.inputs_attr)
        if not are_equal(host, self._host):  # on the host, because comparing on a GPU would block
            self._host = host
            self._sent = {name: value for name, value in sent.items() if name in {*host, *LAYOUT}}
        return {**sent, **self._sent}

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        given = {name: value for name, value in inputs.items() if name in {*self.inputs_attr, *LAYOUT}}
        if not all(value is self._inputs.get(name) for name, value in given.items()):
            # The outputs for all heads, so that the next head finds them here.
            self._outputs = self.encoder(given, self._wanted)
            # Tensors are compared by identity, because comparing their values would block on a GPU.
            self._inputs = given
        return {name: self._outputs[name] for name in (self._wanted if wanted is None else wanted)}


def are_equal(one: Tensors, other: Tensors) -> bool:
    """Check whether two batches on the CPU have equal tensors."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def versions(module: nn.Module) -> list[tuple[int, int]]:
    """Return a value that changes when parameters of `module` are loaded."""
    return [(id(parameter), parameter._version) for parameter in module.parameters()]
