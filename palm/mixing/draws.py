"""Which task a step trains, and how many steps each is planned to get: functions of position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palm.core.rng import generator


def draw_task(seed: int, step: int, weights: Sequence[float]) -> int:
    """The index of the task that global step `step` (from 0) trains, drawn in proportion to `weights`."""
    bounds = np.cumsum(weights)
    point = generator(seed, "mix", step).random() * bounds[-1]
    return int(np.searchsorted(bounds, point, side="right"))


def plan_steps(num_epochs: float, mix_ratio: float, main_steps_per_epoch: int, share: float = 1.0) -> int:
    """How many steps a task is expected to get: `int(num_epochs * mix_ratio * steps per epoch of the main)`.

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
