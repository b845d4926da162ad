"""Weights of the tasks in a loss, from their losses."""

from __future__ import annotations

import copy
import math
from abc import ABC
from collections.abc import Sequence
from typing import Any

from palm.core.component import Component, Registry

__all__ = ["BALANCES", "Balance", "Uncertainty"]


class Balance(Component, ABC):
    """A balancing method. Everything it learns is in `state`, JSON-ready, for checkpoints.

    Attributes:
        state: name -> task -> values.
    """

    def __init__(self) -> None:
        """Without settings; methods may add some."""
        self.state: dict[str, dict[str, Any]] = {}

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return the factor of every loss in the next step; 1 each if the method does not use losses."""
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


RATE = 0.025
"""Learning rate of the weights of uncertainty."""


@BALANCES.register("uncertainty")
class Uncertainty(Balance):
    """A loss L has the weight `exp(-s)`, where s is learned along with the model to minimize `exp(-s) L + s`.

    s approaches log L, so all tasks have about the same influence, regardless of the scale of their losses.

    Source: Kendall et al., 2018, arXiv:1705.07115, with plain gradient steps on s, each clipped to the rate.
    """

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return `exp(-s)` for each task, initially 1."""
        return [math.exp(-self.table("s").get(task, 0.0)) for task in tasks]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Update s by a step against its gradient, `1 - exp(-s) L`."""
        s = self.table("s")
        for task, loss in zip(tasks, losses, strict=True):
            now = s.get(task, 0.0)
            # The gradient is clipped, so a single huge loss does not change s much.
            s[task] = now - RATE * min(max(1 - math.exp(-now) * loss, -1.0), 1.0)
