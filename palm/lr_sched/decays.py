"""Schedules that fall without a seam after the warm-up: linear, cosine, polynomial, slanted triangular."""

from __future__ import annotations

import math
from abc import abstractmethod

from palm.core.checks import raise_any
from palm.core.errors import ConfigError
from palm.lr_sched.base import LR_SCHEDULES, Schedule


class Decay(Schedule):
    """Linear warm-up from 0 to 1, then a fall to `lr_end_factor` at the end of the run, where it stays.

    Args:
        warmup_steps: number of steps that warm up; 0 for none.
        num_train_steps: number of steps until the fall ends.
        lr_end_factor: of linear, cosine and polynomial, what is left of the learning rate at the end.

    Raises:
        ConfigError: for values outside their range.
    """

    def __init__(self, warmup_steps: float, num_train_steps: float, lr_end_factor: float = 0.0) -> None:
        problems = []
        if not 0 <= warmup_steps < num_train_steps:
            problems.append(
                f"warmup_steps should be at least 0 and below num_train_steps ({num_train_steps!r}),"
                f" not {warmup_steps!r}"
            )
        if not 0 <= lr_end_factor < 1:
            problems.append(f"lr_end_factor should be at least 0 and below 1, not {lr_end_factor!r}")
        raise_any(problems)
        self.warmup_steps, self.num_train_steps = warmup_steps, num_train_steps
        self.end_factor = lr_end_factor

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return step / self.warmup_steps
        progress = (step - self.warmup_steps) / (self.num_train_steps - self.warmup_steps)
        return self.end_factor + (1 - self.end_factor) * self.left(min(progress, 1.0))

    @abstractmethod
    def left(self, progress: float) -> float:
        """What is left of the fall, from 1 to 0, after a share `progress` of the steps after the warm-up."""


@LR_SCHEDULES.register("linear")
class LinearScheduler(Decay):
    """Linear warm-up from 0, then a straight line down: `1 − progress` after the warm-up."""

    def left(self, progress: float) -> float:
        """The straight line."""
        return 1.0 - progress


@LR_SCHEDULES.register("cosine")
class CosineScheduler(Decay):
    """Linear warm-up from 0, then half a period of a cosine: `(1 + cos(π · progress)) / 2`.

    Source: Loshchilov and Hutter, 2016, arXiv:1608.03983, equation 5, without restarts.
    """

    def left(self, progress: float) -> float:
        """The cosine."""
        return 0.5 * (1.0 + math.cos(math.pi * progress))


@LR_SCHEDULES.register("polynomial")
class PolynomialScheduler(Decay):
    """Linear warm-up from 0, then `(1 − progress) ** lr_power`.

    Args:
        lr_power: of polynomial; at 1 it is a straight line, above 1 the rate falls fast at first.

    Raises:
        ConfigError: for values outside their range.
    """

    def __init__(
        self,
        warmup_steps: float,
        num_train_steps: float,
        lr_end_factor: float = 0.0,
        lr_power: float = 2.0,
    ) -> None:
        super().__init__(warmup_steps, num_train_steps, lr_end_factor)
        if not lr_power > 0:
            raise ConfigError([f"lr_power should be above 0, not {lr_power!r}"])
        self.power = lr_power

    def left(self, progress: float) -> float:
        """The power."""
        return float((1.0 - progress) ** self.power)


@LR_SCHEDULES.register("slanted_triangular")
class SlantedTriangularScheduler(Schedule):
    """A short, steep line up and a long one down; both ends are the `lr_ratio`-th part of the learning rate.

    With T = `num_train_steps` and `cut = ⌊T · lr_cut_fraction⌋`: `(1 + p · (lr_ratio − 1)) / lr_ratio`, where
    `p = t / cut` below the cut, and `1 − (t − cut) / (cut · (1 / lr_cut_fraction − 1))` from there on.

    Args:
        num_train_steps: number of steps of the run.
        lr_cut_fraction: of slanted_triangular, the share of all steps in which the rate rises.
        lr_ratio: of slanted_triangular, how many times smaller the lowest rate is than the highest.

    Raises:
        ConfigError: for values outside their range, or a run too short to rise in.

    Source: Howard and Ruder, 2018, arXiv:1801.06146, equation 3.
    """

    def __init__(self, num_train_steps: float, lr_cut_fraction: float = 0.1, lr_ratio: float = 32.0) -> None:
        problems = []
        if not 0 < lr_cut_fraction < 1:
            problems.append(f"lr_cut_fraction should be above 0 and below 1, not {lr_cut_fraction!r}")
        elif int(num_train_steps * lr_cut_fraction) < 1:
            problems.append(
                f"slanted_triangular: {num_train_steps!r} steps are too few to rise in a share of "
                f"{lr_cut_fraction!r} of them; raise lr_cut_fraction"
            )
        if not lr_ratio >= 1:
            problems.append(f"lr_ratio should be 1 or more, not {lr_ratio!r}")
        raise_any(problems)
        self.cut = int(num_train_steps * lr_cut_fraction)
        self.fall = self.cut * (1 / lr_cut_fraction - 1)
        self.ratio = lr_ratio

    def __call__(self, step: int) -> float:
        risen = step / self.cut if step < self.cut else max(0.0, 1 - (step - self.cut) / self.fall)
        return (1 + risen * (self.ratio - 1)) / self.ratio
