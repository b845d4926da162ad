"""The base class of balancing methods, which give every task's loss, or gradient, of a step a factor."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from palm.core.component import Component
from palm.core.registry import Registry


class Balance(Component, ABC):
    """A balancing method. What it has learned is in `state` alone, JSON-ready, for checkpoints.

    Attributes:
        needs_gradients: whether `of_gradients` decides, from the dot products of the tasks' gradients;
            otherwise `of_losses`, from what `observe` was told of earlier steps.
        state: name -> task -> numbers.
    """

    needs_gradients: ClassVar[bool] = False

    def __init__(self) -> None:
        """No settings, unless a method has some."""
        self.state: dict[str, dict[str, Any]] = {}

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """The factor of every loss in the step that comes; 1 each where the method does not use them."""
        return [1.0] * len(tasks)

    def of_gradients(self, tasks: Sequence[str], gramian: Tensor, draws: np.random.Generator) -> list[float]:  # noqa: ARG002
        """The factor of every gradient.

        Args:
            tasks: those of the step.
            gramian: the dot products of their gradients, averaged over ranks, float64[tasks, tasks].
            draws: where random numbers come from.
        """
        return [1.0] * len(tasks)

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Take the losses of a step in, which were measured before its update."""

    def table(self, name: str) -> dict[str, Any]:
        """Return the part of the state that has a name."""
        return self.state.setdefault(name, {})

    def state_dict(self) -> dict[str, Any]:
        """Return what the method has learned, JSON-ready."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from where `state_dict` was taken."""
        self.state = copy.deepcopy(state)

    def reset(self) -> None:
        """Forget what it has learned: a run begins."""
        self.state = {}


BALANCES: Registry[type[Balance]] = Registry("balancing method", Balance, "balance")
