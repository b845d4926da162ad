"""Draws of the tasks of a step, and plans of the steps of a task, as functions of position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palm.core.numerics.rng import generator


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
