"""The optimizer of PaddlePALM 2.x, which takes the schedule, and the base class of custom ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palm import optimizer
from palm.compat.optimizer import base_optimizer

__all__ = ["Adam", "base_optimizer"]

Factor = Callable[[int], float]
"""Step, counted from 0 -> factor of the learning rate."""


class Adam(optimizer.AdamW):
    """Adam as in PaddlePALM 2.x: gradients are not clipped by default.

    Args:
        loss_var: return value of the trainer's `build_forward`, not used.
        lr: base learning rate, multiplied by the schedule.
        lr_schedualer: the schedule; None for a constant rate.
        settings: other settings of `palm.optimizer.AdamW`.
    """

    stands_for = optimizer.AdamW

    def __init__(
        self, loss_var: Any, lr: float, lr_schedualer: Factor | None = None, **settings: Any
    ) -> None:
        del loss_var
        super().__init__(lr, **{"grad_clip": None, **settings})
        self.lr_scheduler = lr_schedualer
