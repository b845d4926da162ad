"""The tasks of a step, and the steps of a task, as functions of position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palm.core.numerics.rng import generator


def draw_task(seed: int, step: int, weights: Sequence[float]) -> int:
    """The index of the task that global step `step` (from 0) trains, drawn in proportion to `weights`."""
    bounds = np.cumsum(weights)
    # A generator for each step: what is drawn at step 1,000 does not depend on whether 1 to 999 were.
    point = generator(seed, "mix", step).random() * bounds[-1]
    return int(np.searchsorted(bounds, point, side="right"))


def inclusion_probabilities(weights: Sequence[float], count: float) -> list[float]:
    """The chance of each task to be among `count` distinct ones: in proportion to `weights`, at most 1.

    What a task cannot take beyond 1 is shared out among the others, in proportion again.

    Args:
        weights: 0 for a task that is never drawn.
        count: how many tasks are drawn, on average where it is no whole number; all with a weight where there
            are fewer.
    """
    chances = [0.0] * len(weights)
    open_tasks = [k for k, weight in enumerate(weights) if weight > 0]
    left = min(count, len(open_tasks))
    while open_tasks:
        total = sum(weights[k] for k in open_tasks)
        # Those that would exceed 1 are settled, and what is left is shared out among the others once more.
        full = [k for k in open_tasks if left * weights[k] >= total]
        for k in full or open_tasks:
            chances[k] = 1.0 if full else left * weights[k] / total
        left -= len(full)
        open_tasks = [k for k in open_tasks if full and k not in full]
    return chances


def draw_tasks(seed: int, step: int, chances: Sequence[float]) -> list[int]:
    """The indices of the distinct tasks that global step `step` (from 0) trains together, ascending.

    One random number decides: the chances, see `inclusion_probabilities`, are laid end to end as on a ruler,
    which is moved by that number; a task is drawn if a whole number then lies within its stretch. So each has
    exactly its chance, which drawing one after another without replacement would not give.

    Source: systematic sampling, Madow, 1949, doi:10.1214/aoms/1177729988.
    """
    ends = np.round(np.cumsum(chances), 9)  # a sum that is a whole number, but for rounding, is one
    marks = np.floor(ends - generator(seed, "mix", step).random()).astype(int)
    before = np.concatenate([[-1], marks[:-1]])
    return [int(k) for k in np.flatnonzero(marks > before)]


def planned_updates(expected: Sequence[int], tasks_per_step: int) -> int:
    """In how few global steps all tasks can have their expected ones, at most so many of them in each."""
    return max(-(-sum(expected) // tasks_per_step), max(expected, default=0))


def planned_chances(left: Sequence[int], is_target: Sequence[bool], tasks_per_step: int) -> list[float]:
    """The chances by which all tasks have had their plans after `planned_updates` steps more, evenly spread.

    Args:
        left: steps of the plan that each task has left.
        is_target: the last step of the last target ends the run, so it waits for the others.
        tasks_per_step: how many distinct tasks a global step trains at most.
    """
    steps = planned_updates(left, tasks_per_step)
    of_targets = sum(np.multiply(left, is_target))
    if of_targets == 1 < steps:
        others = [0 if target else own for own, target in zip(left, is_target, strict=True)]
        room = tasks_per_step * (steps - 1) - 1  # of the steps after this one, beside that of the target
        return inclusion_probabilities(others, max(sum(others) / steps, sum(others) - room))
    return inclusion_probabilities(left, sum(left) / steps)


def plan_steps(num_epochs: float, mix_ratio: float, main_steps_per_epoch: int, share: float = 1.0) -> int:
    """Plan the steps of a task: `int(num_epochs * mix_ratio * steps per epoch of the main task)`.

    Args:
        num_epochs: passes over the main task's training data.
        mix_ratio: of the task.
        main_steps_per_epoch: steps of one such pass.
        share: how often a mixing strategy draws the task beyond that, relative to the main task.

    Source: the 0.2.1 document, "expected training steps".
    """
    steps = num_epochs * mix_ratio * main_steps_per_epoch
    # A quotient of two sizes is not exact; its rounding must not cost a step.
    return int(steps) if share == 1.0 else int(round(steps * share, 6))
