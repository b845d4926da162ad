"""The backbone's side of the contract: the reader's tensors in, features out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from torch import nn

from palm.contract import Specs, Tensors
from palm.registry import Registry


class Backbone(nn.Module):
    """A shared encoder.

    Attributes:
        inputs_attr: tensors it takes from the reader.
        outputs_attr: features it gives.
        settings: its constructor's arguments, complete, JSON-ready; with them and the weights it is rebuilt.
    """

    inputs_attr: Specs
    outputs_attr: Specs
    settings: dict[str, object]

    @abstractmethod
    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        """The declared outputs of the declared inputs.

        Args:
            inputs: every name of `inputs_attr`; further names are ignored.
            wanted: the outputs that somebody will read; None for all. What nobody reads may be left out.
        """


BACKBONES: Registry[type[Backbone]] = Registry("backbone")
