"""The mixing strategies: fixed ratios, by size, and round robin."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palm.core.component import (
    Component,
    Registry,
    number_problems,
    raise_any,
)
from palm.core.layers import generator


def draw_task(seed: int, step: int, weights: Sequence[float]) -> int:
    """Draw a task for global step `step` (from 0), in proportion to `weights`; return its index."""
    bounds = np.cumsum(weights)
    # Each step has its own generator, so its draw does not depend on earlier draws.
    point = generator(seed, "mix", step).random() * bounds[-1]
    return int(np.searchsorted(bounds, point, side="right"))


def inclusion_probabilities(weights: Sequence[float], count: float) -> list[float]:
    """Compute each task's probability of being among `count` distinct ones, in proportion to `weights`.

    Probabilities are at most 1; the excess is distributed among the other tasks in the same proportion.

    Args:
        weights: one per task; 0 for a task that is never drawn.
        count: number of drawn tasks, an average if it is not an integer; if fewer tasks have a weight, all of
            these are drawn.
    """
    chances = [0.0] * len(weights)
    open_tasks = [k for k, weight in enumerate(weights) if weight > 0]
    left = min(count, len(open_tasks))
    while open_tasks:
        total = sum(weights[k] for k in open_tasks)
        # Tasks that would exceed 1 get 1, and the rest is distributed among the others again.
        full = [k for k in open_tasks if left * weights[k] >= total]
        for k in full or open_tasks:
            chances[k] = 1.0 if full else left * weights[k] / total
        left -= len(full)
        open_tasks = [k for k in open_tasks if full and k not in full]
    return chances


def draw_tasks(seed: int, step: int, chances: Sequence[float]) -> list[int]:
    """Draw the distinct tasks of global step `step` (from 0); return their indices, ascending.

    The probabilities (see `inclusion_probabilities`) are consecutive intervals on a line, which is shifted by
    one random number. A task is drawn if its interval then contains an integer. So each task has exactly its
    probability, unlike with successive draws without replacement.

    Source: systematic sampling, Madow, 1949, doi:10.1214/aoms/1177729988.
    """
    ends = np.round(np.cumsum(chances), 9)  # removes rounding errors from sums that should be integers
    marks = np.floor(ends - generator(seed, "mix", step).random()).astype(int)
    before = np.concatenate([[-1], marks[:-1]])
    return [int(k) for k in np.flatnonzero(marks > before)]


def planned_updates(expected: Sequence[int], tasks_per_step: int) -> int:
    """Return the minimum number of global steps for the expected steps, `tasks_per_step` of them in each."""
    return max(-(-sum(expected) // tasks_per_step), max(expected, default=0))


def planned_chances(left: Sequence[int], is_target: Sequence[bool], tasks_per_step: int) -> list[float]:
    """Compute probabilities that distribute the remaining steps evenly over `planned_updates` global steps.

    Args:
        left: remaining planned steps of each task.
        is_target: True for targets; the last step of the last target ends the run, so it is delayed until the
            other tasks have no steps left.
        tasks_per_step: maximum number of distinct tasks in a global step.
    """
    steps = planned_updates(left, tasks_per_step)
    of_targets = sum(np.multiply(left, is_target))
    if of_targets == 1 < steps:
        others = [0 if target else own for own, target in zip(left, is_target, strict=True)]
        room = tasks_per_step * (steps - 1) - 1  # places in later steps, except the one of the target
        return inclusion_probabilities(others, max(sum(others) / steps, sum(others) - room))
    return inclusion_probabilities(left, sum(left) / steps)


def plan_steps(num_epochs: float, mix_ratio: float, main_steps_per_epoch: int, share: float = 1.0) -> int:
    """Plan the steps of a task: `int(num_epochs * mix_ratio * steps per epoch of the main task)`.

    Args:
        num_epochs: passes over the main task's training data.
        mix_ratio: the task's `mix_ratio`.
        main_steps_per_epoch: steps in one such pass.
        share: the task's share by the mixing strategy, relative to the main task.

    Source: the 0.2.1 document, "expected training steps".
    """
    steps = num_epochs * mix_ratio * main_steps_per_epoch
    # Rounded first, so an inexact quotient of two sizes does not lose a step.
    return int(steps) if share == 1.0 else int(round(steps * share, 6))


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """The progress of one task, for a mixing strategy.

    Args:
        name: the task's name.
        mix_ratio: how often it is drawn, relative to the others, before the strategy changes that.
        rows: number of its training rows.
        steps_per_epoch: number of its steps in one pass over the rows.
        is_target: True if it gets an exact number of steps.
        step: number of its steps so far.
        expected_steps: number of planned steps; 0 if that is not known yet.
        share_rows_with: the task with the same rows, in whose steps it is trained; it is not drawn itself.
    """

    name: str
    mix_ratio: float
    rows: int
    steps_per_epoch: int
    is_target: bool = True
    step: int = 0
    expected_steps: int = 0
    share_rows_with: str | None = None


class Mixing(Component, ABC):
    """A mixing strategy. It has no state; its results depend only on the progress of the tasks.

    No task is drawn more often than planned, so every task has exactly its planned steps at the end of a run.
    """

    def __init__(self) -> None:
        pass

    @abstractmethod
    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return each task's present rate of draws, relative to the others, for equal `mix_ratio`s."""

    def weights(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return the weight of each task in the next draw: its `mix_ratio` times its share."""
        return [task.mix_ratio * share for task, share in zip(tasks, self.shares(tasks), strict=True)]

    def draw(self, seed: int, step: int, tasks: Sequence[TaskProgress]) -> int:
        """Draw the task of global step `step` (from 0); return its index."""
        weights: Sequence[float] = self.weights(tasks)
        if any(left := keep_target_for_last(tasks, self.left(tasks))):
            # If only tasks of weight 0 have planned steps left, draw by the remaining steps.
            chances = self.chances(weights, left)
            weights = chances if any(chances) else left
        return draw_task(seed, step, weights)

    def left(self, tasks: Sequence[TaskProgress]) -> list[int]:
        """Count the remaining planned steps of each task; 0 without a plan."""
        return [max(task.expected_steps - task.step, 0) for task in tasks]

    def chances(self, weights: Sequence[float], left: Sequence[int]) -> Sequence[float]:
        """Return the weights of planned draws: the weights of the tasks that have steps left."""
        return [weight if steps else 0.0 for weight, steps in zip(weights, left, strict=True)]

    def binding_plan(
        self,
        tasks: Sequence[TaskProgress],
        count: int = 1,  # noqa: ARG002
    ) -> list[int | str] | None:
        """Return the part of the plan that affects draws long before the end of the run; None if none does.

        Args:
            tasks: the tasks with their planned steps.
            count: number of tasks in a global step.
        """
        return [task.expected_steps for task in tasks] if len(tasks) > 1 else None

    def draw_several(self, seed: int, step: int, tasks: Sequence[TaskProgress], count: int) -> list[int]:
        """Draw the distinct tasks of global step `step`; return their indices, ascending.

        The remaining steps of all tasks are distributed evenly over the remaining global steps, so they may
        be fewer than `count`. With a `count` of 1 this is the same as `draw`.
        """
        if count == 1:
            return [self.draw(seed, step, tasks)]
        left = Mixing.left(self, tasks)
        if any(left):
            chances = planned_chances(left, [task.is_target for task in tasks], count)
        else:
            chances = inclusion_probabilities(self.weights(tasks), count)
        return draw_tasks(seed, step, chances)

    def expected_steps(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[int]:
        """Plan the steps of each task.

        `int(num_epochs * mix_ratio * steps per epoch of the reference * its share / the reference's)`.

        Args:
            tasks: the tasks before the first step.
            reference: index of the task whose epochs are counted.
            num_epochs: passes over the data of that task.

        Raises:
            ConfigError: the strategy does not suit this run.
        """
        shares = self.shares(tasks)
        per_epoch = tasks[reference].steps_per_epoch
        return [
            plan_steps(num_epochs, task.mix_ratio, per_epoch, share / shares[reference])
            for task, share in zip(tasks, shares, strict=True)
        ]


class EpochMixing(Mixing):
    """A strategy whose shares are known for every epoch of the main task, the first target.

    Planned draws are the steps of an epoch in random order, without replacement. So they do not depend on the
    number of later epochs, and all tasks advance together with the main one.
    """

    def quotas(self, tasks: Sequence[TaskProgress], epochs: float) -> list[int]:
        """Plan the steps of each task in this number of epochs of the main task."""
        main = first_target(tasks)
        return self.expected_steps(tasks, main, epochs / tasks[main].mix_ratio)

    def left(self, tasks: Sequence[TaskProgress]) -> list[int]:
        """Count the remaining steps of each task in the current epoch."""
        main = tasks[first_target(tasks)]
        last = math.ceil(main.expected_steps / main.steps_per_epoch) if self._is_by_shares(tasks) else 0
        # The main task may finish its steps of an epoch before the others do.
        for epoch in range(max(main.step // main.steps_per_epoch, 1), last):
            planned = zip(tasks, self.quotas(tasks, epoch), strict=True)
            left = [max(min(quota, task.expected_steps) - task.step, 0) for task, quota in planned]
            if any(left):
                return left
        return super().left(tasks)

    def chances(self, weights: Sequence[float], left: Sequence[int]) -> Sequence[float]:  # noqa: ARG002
        """Return the remaining steps as weights."""
        return left

    def binding_plan(self, tasks: Sequence[TaskProgress], count: int = 1) -> list[int | str] | None:
        """Return only "whole epochs" for plans of whole epochs, because longer plans begin the same way."""
        plan = super().binding_plan(tasks, count)
        main = tasks[first_target(tasks)]
        if count > 1:  # draws are from the whole plan
            return plan
        is_whole = main.expected_steps % main.steps_per_epoch == 0 and self._is_by_shares(tasks)
        return ["whole epochs"] * len(tasks) if plan and is_whole else plan

    def _is_by_shares(self, tasks: Sequence[TaskProgress]) -> bool:
        """Check whether the plan follows the shares (within one step) and not each task's own epochs."""
        main = tasks[first_target(tasks)]
        quotas = self.quotas(tasks, main.expected_steps / main.steps_per_epoch)
        return all(abs(task.expected_steps - quota) <= 1 for task, quota in zip(tasks, quotas, strict=True))


def first_target(tasks: Sequence[TaskProgress]) -> int:
    """Return the index of the main task, the first target."""
    return next(number for number, task in enumerate(tasks) if task.is_target)


def keep_target_for_last(tasks: Sequence[TaskProgress], left: Sequence[int]) -> list[int]:
    """Return `left` without the last step of the last target, which ends the run, while others have steps."""
    of_targets = sum(steps for task, steps in zip(tasks, left, strict=True) if task.is_target)
    waits = of_targets == 1 < sum(left)
    return [0 if waits and task.is_target else steps for task, steps in zip(tasks, left, strict=True)]


MIXINGS: Registry[type[Mixing]] = Registry("mixing strategy", Mixing, "mixing")


@MIXINGS.register("mix_ratio")
class MixRatio(EpochMixing):
    """Tasks are drawn in proportion to their `mix_ratio`, as in PaddlePALM."""

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return 1 for each task."""
        return [1.0] * len(tasks)


@MIXINGS.register("proportional")
class Proportional(EpochMixing):
    """Tasks are drawn in proportion to their sizes, so rows of all tasks are used equally often.

    With a `mix_ratio` of 1, a task gets `num_epochs` passes over its own rows.
    """

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return the number of steps in one pass over each task's rows."""
        return [float(task.steps_per_epoch) for task in tasks]


@MIXINGS.register("temperature")
@dataclass(eq=False, repr=False)
class Temperature(EpochMixing):
    """Between proportional and equal: a task's rows are drawn in proportion to `rows ** (1 / T)`.

    T = 1 is `proportional`; larger values of T make the tasks more equal.

    Args:
        mixing_temperature: T of the strategy temperature, 1 or more.

    Raises:
        ConfigError: a value is out of range.

    Source: Raffel et al., 2020, arXiv:1910.10683, section 3.5.2, with chances per row.
    """

    mixing_temperature: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {"mixing_temperature": self.mixing_temperature}
        raise_any(number_problems("1 or more", lambda value: 1 <= value < math.inf, **given))
        self.exponent = 1 / self.mixing_temperature

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return the rate of each task's rows divided by the rows per step."""
        return [task.rows ** (self.exponent - 1) * task.steps_per_epoch for task in tasks]


@MIXINGS.register("round_robin")
class RoundRobin(MixRatio):
    """Tasks take turns in the order of the configuration, without randomness.

    The next task is always the one whose steps are furthest behind its `mix_ratio`; a task with a ratio of
    0.5 gets every second turn.
    """

    def draw(self, seed: int, step: int, tasks: Sequence[TaskProgress]) -> int:  # noqa: ARG002
        """Return the index of the next task, among those that have steps left."""
        left = keep_target_for_last(tasks, self.left(tasks))
        waits = any(left)
        turns = [
            # The middle of a task's next step, scaled by its ratio; the minimum is furthest behind.
            (task.step + 0.5) / task.mix_ratio if task.mix_ratio and (steps or not waits) else math.inf
            for task, steps in zip(tasks, left, strict=True)
        ]
        return turns.index(min(turns))
