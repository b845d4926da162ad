"""The contract of mixing strategies: every task's share of the draws, from the tasks' progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from palm.core.checks import choice_problems, raise_any
from palm.core.component import Component
from palm.core.registry import Registry
from palm.mixing.draws import (
    draw_task,
    draw_tasks,
    inclusion_probabilities,
    plan_steps,
    planned_chances,
    planned_updates,
)


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """The progress of one task, for a mixing strategy.

    Args:
        name: the task's name.
        mix_ratio: its rate of draws, relative to the others, before the strategy changes it.
        rows: number of its training rows.
        steps_per_epoch: number of its steps in one pass over them.
        is_target: whether it gets an exact number of steps.
        step: how many steps it has had.
        expected_steps: how many it is planned to get; 0 while that is not known.
        scores: its dev scores so far, from 0 to 1, the higher the better.
        share_rows_with: the task in whose steps it is trained, on the same rows; then it is not drawn itself.
    """

    name: str
    mix_ratio: float
    rows: int
    steps_per_epoch: int
    is_target: bool = True
    step: int = 0
    expected_steps: int = 0
    scores: tuple[float, ...] = ()
    share_rows_with: str | None = None


Draws = Literal["planned", "independent"]


class Mixing(Component, ABC):
    """A mixing strategy; it has no state: what it gives depends on where the tasks stand alone.

    Args:
        mixing_draws: planned: no task is drawn beyond its planned steps, so that every one has exactly these
            when the run ends; independent: every step is drawn for itself, as PaddlePALM does.

    Attributes:
        follows_scores: whether shares change with dev scores. Then the steps that are left are
            planned again after every evaluation; otherwise a plan is made once.
        follows_plan: whether shares depend on `TaskProgress.expected_steps`. Then a run cannot be continued
            with another `num_epochs`.
    """

    follows_scores: ClassVar[bool] = False
    follows_plan: ClassVar[bool] = False

    mixing_draws: str = "planned"

    def __init__(self, *, mixing_draws: Draws = "planned") -> None:
        raise_any(choice_problems(("planned", "independent"), mixing_draws=mixing_draws))
        self.mixing_draws = mixing_draws

    @abstractmethod
    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Each task's rate of draws now, relative to the others, if all have the same `mix_ratio`."""

    def planned_shares(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[float]:  # noqa: ARG002
        """The shares that `expected_steps`, which has the same arguments, plans by: the run's average."""
        return self.shares(tasks)

    def weights(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Weigh each task's chance of being drawn now: `mix_ratio` times its share."""
        return [task.mix_ratio * share for task, share in zip(tasks, self.shares(tasks), strict=True)]

    def draw(self, seed: int, step: int, tasks: Sequence[TaskProgress]) -> int:
        """The index of the task that global step `step` (from 0) trains."""
        weights: Sequence[float] = self.weights(tasks)
        if self.mixing_draws == "planned" and any(left := keep_target_for_last(tasks, self.left(tasks))):
            # Tasks of weight 0 may be all that the plan has left; then what is left decides.
            chances = self.chances(weights, left)
            weights = chances if any(chances) else left
        return draw_task(seed, step, weights)

    def left(self, tasks: Sequence[TaskProgress]) -> list[int]:
        """Count the steps of the plan that each task has left; 0 without a plan."""
        return [max(task.expected_steps - task.step, 0) for task in tasks]

    def chances(self, weights: Sequence[float], left: Sequence[int]) -> Sequence[float]:
        """Weigh planned draws: by the weights of the tasks that have steps left."""
        return [weight if steps else 0.0 for weight, steps in zip(weights, left, strict=True)]

    def binding_plan(
        self,
        tasks: Sequence[TaskProgress],
        count: int = 1,  # noqa: ARG002
    ) -> list[int | str] | None:
        """The part of the plan that decides draws long before its end; None if any plan fits.

        Args:
            tasks: as they are planned.
            count: how many a global step trains.
        """
        if self.follows_scores:  # checkpoints have its plan
            return None
        is_drawn_from = self.mixing_draws == "planned" and len(tasks) > 1
        return [task.expected_steps for task in tasks] if self.follows_plan or is_drawn_from else None

    def draw_several(self, seed: int, step: int, tasks: Sequence[TaskProgress], count: int) -> list[int]:
        """The indices of the distinct tasks that global step `step` trains together, ascending.

        Planned draws spread what every task has left of its plan evenly over the steps that this takes, so
        they may be fewer than `count`; independent ones are `count` tasks in proportion to their weights.
        Of one task it is `draw`.
        """
        if count == 1:
            return [self.draw(seed, step, tasks)]
        left = Mixing.left(self, tasks)
        if self.mixing_draws == "planned" and any(left):
            chances = planned_chances(left, [task.is_target for task in tasks], count)
        else:
            chances = inclusion_probabilities(self.weights(tasks), count)
        return draw_tasks(seed, step, chances)

    def planned_updates(self, expected: Sequence[int], is_target: Sequence[bool], count: int) -> int:
        """Plan the number of global steps, each of at most `count` tasks.

        Args:
            expected: the steps that each task is expected to get.
            is_target: whether the run waits for it, where draws are independent.
            count: how many distinct tasks a global step trains.
        """
        if count == 1 or self.mixing_draws == "planned" or not any(expected):
            return planned_updates(expected, count)
        # Independent draws reach a number of steps on average only: the slowest task that counts decides.
        chances = zip(inclusion_probabilities(expected, count), expected, is_target, strict=True)
        return round(max(steps / chance for chance, steps, counts in chances if chance and counts))

    def expected_steps(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[int]:
        """Plan the steps of each task.

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


class EpochMixing(Mixing):
    """A strategy that knows its shares of every epoch of the main task, the first target.

    Its planned draws are those of an urn: an epoch's steps in random order. So they do not depend on how many
    epochs follow, and all tasks keep step with the main one.
    """

    def quotas(self, tasks: Sequence[TaskProgress], epochs: float) -> list[int]:
        """Plan the steps of each task in so many epochs of the main task."""
        main = first_target(tasks)
        return self.expected_steps(tasks, main, epochs / tasks[main].mix_ratio)

    def left(self, tasks: Sequence[TaskProgress]) -> list[int]:
        """Count the steps that each task has left of the current epoch."""
        main = tasks[first_target(tasks)]
        last = math.ceil(main.expected_steps / main.steps_per_epoch) if self._is_by_shares(tasks) else 0
        # The main task may have had its steps of an epoch before the others have had theirs.
        for epoch in range(max(main.step // main.steps_per_epoch, 1), last):
            planned = zip(tasks, self.quotas(tasks, epoch), strict=True)
            left = [max(min(quota, task.expected_steps) - task.step, 0) for task, quota in planned]
            if any(left):
                return left
        return super().left(tasks)

    def chances(self, weights: Sequence[float], left: Sequence[int]) -> Sequence[float]:  # noqa: ARG002
        """The steps that are left."""
        return left

    def binding_plan(self, tasks: Sequence[TaskProgress], count: int = 1) -> list[int | str] | None:
        """Of a plan of whole epochs, nothing but that: longer ones begin like it."""
        plan = super().binding_plan(tasks, count)
        main = tasks[first_target(tasks)]
        if count > 1:  # draws are from the whole plan
            return plan
        is_whole = main.expected_steps % main.steps_per_epoch == 0 and self._is_by_shares(tasks)
        return ["whole epochs"] * len(tasks) if plan and is_whole and not self.follows_plan else plan

    def _is_by_shares(self, tasks: Sequence[TaskProgress]) -> bool:
        """Check that the plan follows the shares, give or take a step, and not each task's own epochs."""
        main = tasks[first_target(tasks)]
        quotas = self.quotas(tasks, main.expected_steps / main.steps_per_epoch)
        return all(abs(task.expected_steps - quota) <= 1 for task, quota in zip(tasks, quotas, strict=True))


def first_target(tasks: Sequence[TaskProgress]) -> int:
    """The index of the main task."""
    return next(number for number, task in enumerate(tasks) if task.is_target)


def keep_target_for_last(tasks: Sequence[TaskProgress], left: Sequence[int]) -> list[int]:
    """`left`, without the very last step of a target while auxiliary tasks have some: it ends the run."""
    of_targets = sum(steps for task, steps in zip(tasks, left, strict=True) if task.is_target)
    waits = of_targets == 1 < sum(left)
    return [0 if waits and task.is_target else steps for task, steps in zip(tasks, left, strict=True)]


MIXINGS: Registry[type[Mixing]] = Registry("mixing strategy", Mixing, "mixing")
