"""Optimizers under the names of PaddlePALM 2.x; each takes the schedule, which `build_backward` reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palm import optimizer
from palm.compat.optimizer import base_optimizer
from palm.optimizer import ParameterGroups

__all__ = ["Adam", "AdamW", "AdamWDL", "Lamb", "ParameterGroups", "base_optimizer"]

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


class AdamW(optimizer.AdamW):
    """`palm.optimizer.AdamW` with a schedule.

    Args:
        learning_rate: base learning rate, multiplied by the schedule.
        lr_scheduler: the schedule; None for a constant rate.
        settings: other settings of `palm.optimizer.AdamW`.
    """

    stands_for = optimizer.AdamW

    def __init__(self, learning_rate: float, *, lr_scheduler: Factor | None = None, **settings: Any) -> None:
        super().__init__(learning_rate, **settings)
        self.lr_scheduler = lr_scheduler


class AdamWDL(optimizer.AdamWDL):
    """`palm.optimizer.AdamWDL` with a schedule; the arguments are those of `AdamW`."""

    stands_for = optimizer.AdamWDL

    def __init__(
        self, learning_rate: float = 1e-3, *, lr_scheduler: Factor | None = None, **settings: Any
    ) -> None:
        super().__init__(learning_rate, **settings)
        self.lr_scheduler = lr_scheduler


class Lamb(optimizer.Lamb):
    """`palm.optimizer.Lamb` with a schedule; the arguments are those of `AdamW`."""

    stands_for = optimizer.Lamb

    def __init__(self, learning_rate: float, *, lr_scheduler: Factor | None = None, **settings: Any) -> None:
        super().__init__(learning_rate, **settings)
        self.lr_scheduler = lr_scheduler
