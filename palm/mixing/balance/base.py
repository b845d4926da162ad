"""The base class of balancing methods, which compute a factor for every task's loss or gradient in a step."""

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
    """A balancing method. Everything it learns is in `state`, JSON-ready, for checkpoints.

    Attributes:
        needs_gradients: True if factors come from `of_gradients`, which reads the dot products of the tasks'
            gradients; otherwise from `of_losses`, which uses the losses that `observe` received.
        state: name -> task -> values.
    """

    needs_gradients: ClassVar[bool] = False

    def __init__(self) -> None:
        """Without settings; methods may add some."""
        self.state: dict[str, dict[str, Any]] = {}

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return the factor of every loss in the next step; 1 each if the method does not use losses."""
        return [1.0] * len(tasks)

    def of_gradients(self, tasks: Sequence[str], gramian: Tensor, draws: np.random.Generator) -> list[float]:  # noqa: ARG002
        """Return the factor of every gradient.

        Args:
            tasks: the tasks of the step.
            gramian: the dot products of their gradients, averaged over ranks, float64[tasks, tasks].
            draws: source of random numbers.
        """
        return [1.0] * len(tasks)

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Process the losses of a step, computed before its update."""

    def table(self, name: str) -> dict[str, Any]:
        """Return the part of the state with this name, created if necessary."""
        return self.state.setdefault(name, {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state, JSON-ready."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.state = copy.deepcopy(state)

    def reset(self) -> None:
        """Clear the state at the start of a run."""
        self.state = {}


BALANCES: Registry[type[Balance]] = Registry("balancing method", Balance, "balance")
