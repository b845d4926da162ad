"""What a mixing strategy is: every task's share of the draws, from where the tasks stand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from palm.core.component import Component
from palm.core.registry import Registry
from palm.mixing.draws import draw_task, plan_steps


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """What a strategy knows of one task when it shares out draws.

    Args:
        name: the task's name.
        mix_ratio: how often it is to be drawn, relative to the others, before the strategy has its say.
        rows: number of its training rows.
        steps_per_epoch: number of its steps in one pass over them.
        is_target: whether it gets an exact number of steps.
        step: how many steps it has had.
        expected_steps: how many it is planned to get; 0 while that is not known.
        scores: its dev scores so far, from 0 to 1, the higher the better.
    """

    name: str
    mix_ratio: float
    rows: int
    steps_per_epoch: int
    is_target: bool = True
    step: int = 0
    expected_steps: int = 0
    scores: tuple[float, ...] = ()


class Mixing(Component, ABC):
    """A mixing strategy; it has no state: what it gives depends on where the tasks stand alone.

    Attributes:
        follows_scores: whether shares change with dev scores. Then the steps that are left are shared
            out anew after every evaluation; otherwise a plan is made once.
        follows_plan: whether shares depend on `TaskProgress.expected_steps`. Then a run cannot be continued
            with another `num_epochs`.
    """

    follows_scores: ClassVar[bool] = False
    follows_plan: ClassVar[bool] = False

    def __init__(self) -> None:
        """No settings, unless a strategy has some."""

    @abstractmethod
    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """How often each task is drawn now, relative to the others, if all have the same `mix_ratio`."""

    def planned_shares(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[float]:  # noqa: ARG002
        """The shares that `expected_steps`, which has the same arguments, plans by: the run's average."""
        return self.shares(tasks)

    def weights(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """What each task's chance of being drawn now is in proportion to: `mix_ratio` times its share."""
        return [task.mix_ratio * share for task, share in zip(tasks, self.shares(tasks), strict=True)]

    def draw(self, seed: int, step: int, tasks: Sequence[TaskProgress]) -> int:
        """The index of the task that global step `step` (from 0) trains."""
        return draw_task(seed, step, self.weights(tasks))

    def expected_steps(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[int]:
        """How many steps each task is planned to get.

        `int(num_epochs * mix_ratio * steps per epoch of the reference * its share / the reference's)`.

        Args:
            tasks: as they stand before the first step.
            reference: the index of the task whose data `num_epochs` counts.
            num_epochs: passes over that data.

        Raises:
            ConfigError: the strategy cannot be followed in this run.
        """
        shares = self.planned_shares(tasks, reference, num_epochs)
        per_epoch = tasks[reference].steps_per_epoch
        return [
            plan_steps(num_epochs, task.mix_ratio, per_epoch, share / shares[reference])
            for task, share in zip(tasks, shares, strict=True)
        ]


MIXINGS: Registry[type[Mixing]] = Registry("mixing strategy", Mixing)
