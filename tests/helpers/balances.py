"""A balancing method and a mixing of the tests' own."""

from __future__ import annotations

from collections.abc import Sequence

from palm.mixing.balance import Balance
from palm.mixing.strategies import Mixing, TaskProgress


class OnlyFirst(Mixing):
    """All steps for the first task."""

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Give every share to the first."""
        return [1.0] + [0.0] * (len(tasks) - 1)


class EqualLosses(Balance):
    """Bring the losses to one size, and the more of it to a task the more steps it had."""

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Divide by the last loss."""
        seen = [self.table("losses").get(task, [1.0, 0]) for task in tasks]
        return [(1 + 0.1 * steps) / loss for loss, steps in seen]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Remember losses and count steps."""
        known = self.table("losses")
        for task, loss in zip(tasks, losses, strict=True):
            known[task] = [loss, known.get(task, [0, 0])[1] + 1]
