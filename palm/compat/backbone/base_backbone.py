"""Base class for custom encoders written for PaddlePALM 2.x: declarations as properties, and `build`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from palm.backbone import base
from palm.compat.conventions import Declaring
from palm.core.saved import Tensors


class Backbone(Declaring, base.Backbone):
    """The base class of encoders in PaddlePALM 2.x.

    A subclass has the properties `inputs_attr` and `outputs_attr` (name -> `[shape, dtype]`) and the method
    `build`. Parameters that Paddle creates inside `build` are created in the constructor.

    Args:
        phase: 'train' or 'predict'.
    """

    @abstractmethod
    def build(self, inputs: Tensors, scope_name: str = "") -> Tensors:
        """Compute the declared outputs from the declared inputs, tensors in place of Paddle's variables."""

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:  # noqa: ARG002
        """Call `build`, which computes all outputs."""
        return self.build({name: inputs[name] for name in self.inputs_attr})
