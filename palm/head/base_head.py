"""Heads as programs of PaddlePALM 2.x write them: `inputs_attrs`, `build`, and what is done with results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from palm.core.component import checked_phase
from palm.core.tensor_specs import Specs, Tensors, specs_of
from palm.paradigm import base

Declared = Mapping[str, Mapping[str, Any]]
"""Component, `reader` or `backbone` -> name -> `[shape, dtype]`."""


class Head(base.Head):
    """The base class of heads in PaddlePALM 2.x.

    A subclass has the properties `inputs_attrs` and `outputs_attr` and the method `build`, which gives a
    `loss` in the phase 'train' and the declared outputs in the phase 'predict'.

    Args:
        phase: 'train' or 'predict'.
    """

    not_called: ClassVar[Mapping[str, str]] = {}

    def __init__(self, phase: str = "train") -> None:
        super().__init__()
        checked_phase(phase)
        self._phase = phase

    @property
    def phase(self) -> str:
        return self._phase

    @property
    @abstractmethod
    def inputs_attrs(self) -> Declared:
        """The tensors that the head takes from each component."""

    @abstractmethod
    def build(self, inputs: dict[str, Tensors], scope_name: str = "") -> Tensors:
        """The declared outputs of the declared inputs, by component; in training with `loss`."""

    @property
    def inputs_attr(self) -> Specs:  # type: ignore[override]
        """The inputs of `forward`: from the backbone, and in prediction from the reader."""
        reader = {} if self.phase == "train" else self.inputs_attrs.get("reader", {})
        return specs_of({**self.inputs_attrs.get("backbone", {}), **reader})

    @property
    def targets_attr(self) -> Specs:  # type: ignore[override]
        """The inputs of `loss` from the reader."""
        return specs_of(self.inputs_attrs.get("reader", {}) if self.phase == "train" else {})

    def forward(self, features: Tensors) -> Tensors:
        """The outputs of `build`; in training its inputs, because the loss needs the batch too."""
        return features if self.phase == "train" else _built(self, features)

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """The mean of what `build` gives as `loss`, which may have any shape."""
        taken = {name: targets[name] for name in self.targets_attr}
        return _built(self, {**outputs, **taken})["loss"].mean()

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row every output, as plain values."""
        columns = [value.tolist() for value in outputs.values()]
        return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def _built(head: Head, tensors: Tensors) -> Tensors:
    return head.build({part: {n: tensors[n] for n in names} for part, names in head.inputs_attrs.items()})
