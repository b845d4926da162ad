"""Base class for custom heads written for PaddlePALM 2.x: `inputs_attrs`, `build` and the result methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from palm.compat.conventions import Declaring, Results, specs_of
from palm.core.saved import Specs, Tensors

Declared = Mapping[str, Mapping[str, Any]]
"""Component, `reader` or `backbone` -> name -> `[shape, dtype]`."""


class Head(Declaring, Results):
    """The base class of heads in PaddlePALM 2.x.

    A subclass has the properties `inputs_attrs` and `outputs_attr` and the method `build`, which returns a
    `loss` in the phase 'train' and the declared outputs in the phase 'predict'.

    Args:
        phase: 'train' or 'predict'.
    """

    @property
    @abstractmethod
    def inputs_attrs(self) -> Declared:
        """The tensors that the head reads from each component."""

    @abstractmethod
    def build(self, inputs: dict[str, Tensors], scope_name: str = "") -> Tensors:
        """Compute the declared outputs from the declared inputs, by component; in training with `loss`."""

    @property
    def inputs_attr(self) -> Specs:  # type: ignore[override]
        """Inputs of `forward`: from the backbone and, in prediction, from the reader."""
        reader = {} if self.phase == "train" else self.inputs_attrs.get("reader", {})
        return specs_of({**self.inputs_attrs.get("backbone", {}), **reader})

    @property
    def targets_attr(self) -> Specs:  # type: ignore[override]
        """Inputs of `loss` from the reader."""
        return specs_of(self.inputs_attrs.get("reader", {}) if self.phase == "train" else {})

    def forward(self, features: Tensors) -> Tensors:
        """Compute the outputs of `build`; in training, return its inputs, because `loss` calls it."""
        return features if self.phase == "train" else _call_build(self, features)

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean of the `loss` of `build`, which may have any shape."""
        declared = {name: targets[name] for name in self.targets_attr}
        return _call_build(self, {**outputs, **declared})["loss"].mean()

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row all outputs, as plain values."""
        columns = [value.tolist() for value in outputs.values()]
        return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def _call_build(head: Head, tensors: Tensors) -> Tensors:
    return head.build({part: {n: tensors[n] for n in names} for part, names in head.inputs_attrs.items()})
