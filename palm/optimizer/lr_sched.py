"""The schedules: PaddlePALM's, linear decay as in BERT, noam and a constant rate; and continuous decays."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palm.core.component import (
    BelowOne,
    Component,
    NonNegative,
    Registry,
    number_problems,
    positive_problems,
    raise_any,
)
from palm.core.errors import ConfigError, about

__all__ = [
    "HORIZON",
    "LR_SCHEDULES",
    "CosineScheduler",
    "LinearScheduler",
    "NoamScheduler",
    "Schedule",
    "TriangularScheduler",
    "WarmupScheduler",
    "schedule_of_run",
]


class Schedule(Component, ABC):
    """A learning-rate schedule; it has no state, so a resumed run needs only the step."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Compute the learning-rate factor of a step, counted from 0 over all tasks."""

    def simplest(self) -> Schedule:
        """Return an equivalent schedule with the fewest settings, for comparison."""
        return self


def warmup_problems(warmup_steps: float, num_train_steps: float) -> list[str]:
    """Return the problem with a warm-up that is negative or not shorter than the run."""
    expected = f"a number of 0 or more, below num_train_steps ({num_train_steps!r})"
    wrong = positive_problems(num_train_steps=num_train_steps)
    return wrong or number_problems(
        expected, lambda value: 0 <= value < num_train_steps, warmup_steps=warmup_steps
    )


LR_SCHEDULES: Registry[type[Schedule]] = Registry("learning-rate schedule", Schedule, "lr_scheduler")

HORIZON = ("warmup_steps", "num_train_steps")
"""Parameters of schedules that the run sets; all others are settings."""


def schedule_of_run(
    name: str,
    num_train_steps: int,
    warmup_proportion: float = 0.0,
    settings: Mapping[str, Any] | None = None,
) -> Schedule:
    """Create the schedule `name` over the horizon of a run.

    Args:
        name: an entry of `LR_SCHEDULES`; its constructor has `warmup_steps`, `num_train_steps` or both.
        num_train_steps: total steps of all tasks.
        warmup_proportion: fraction of them for the warm-up; the number of steps is rounded down, but a short
            run has one step, because PALM's schedules do not fall without a warm-up.
        settings: the constructor's other arguments.

    Raises:
        ConfigError: for arguments that the schedule rejects, or a warm-up that it does not have.
    """
    schedule = LR_SCHEDULES[name]
    warmup_steps = int(warmup_proportion * num_train_steps)
    if warmup_proportion > 0 and num_train_steps > 1:
        warmup_steps = max(1, warmup_steps)
    horizon = dict(zip(HORIZON, (warmup_steps, num_train_steps), strict=True))
    # The signature shows which parts of the horizon a schedule needs, including a user's own.
    accepted = inspect.signature(schedule).parameters
    if warmup_proportion > 0 and "warmup_steps" not in accepted:
        raise ConfigError(about("warmup_proportion", f" is not supported by {name}; leave it out"))
    return schedule(**{key: value for key, value in horizon.items() if key in accepted}, **settings or {})


@LR_SCHEDULES.register("linear_warmup_decay")
@dataclass(eq=False, repr=False)
class TriangularScheduler(Schedule):
    """Linear warm-up from 0, then linear decay to 0 over the whole run, as in BERT.

    `step / warmup_steps` before `warmup_steps`, `1 − step / num_train_steps` from there on, and 0 beyond the
    end. The decay counts from step 0, so the factor drops slightly at the end of the warm-up. Without a
    warm-up the factor is always 1: PALM's `warmup_proportion: 0`.

    Args:
        warmup_steps: number of warm-up steps.
        num_train_steps: number of steps until the factor is 0.

    Raises:
        ConfigError: unless 0 ≤ `warmup_steps` < `num_train_steps`.
    """

    warmup_steps: float
    num_train_steps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        raise_any(warmup_problems(self.warmup_steps, self.num_train_steps))

    def __call__(self, step: int) -> float:
        if self.warmup_steps == 0:
            return 1.0
        if step < self.warmup_steps:
            return step / self.warmup_steps
        # PALM counts the decay from step 0, not from the end of the warm-up.
        return max(0.0, 1.0 - step / self.num_train_steps)

    def simplest(self) -> Schedule:
        """Return a constant schedule if there is no warm-up."""
        return self if self.warmup_steps else WarmupScheduler(0)


@LR_SCHEDULES.register("noam", "noam_decay")
@dataclass(eq=False, repr=False)
class NoamScheduler(Schedule):
    """Linear warm-up, then decay with the square root of the step; the peak is the learning rate.

    With t = step + 1: `min(t / warmup_steps, √(warmup_steps / t))`. Unlike the paper's formula, it does not
    depend on the model's width, nor on the length of the run.

    Args:
        warmup_steps: the step at which the factor is 1.

    Raises:
        ConfigError: unless `warmup_steps` is above 0.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 5.3, scaled as in PaddlePALM 0.2.1.
    """

    warmup_steps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.warmup_steps > 0:
            raise ConfigError(
                f"noam needs at least one warm-up step, not {self.warmup_steps!r}; increase warmup_proportion"
            )

    def __call__(self, step: int) -> float:
        # Counted from 1; otherwise the rate of the first step would be 0.
        ratio = (step + 1) / self.warmup_steps
        return float(min(ratio, ratio**-0.5))


@LR_SCHEDULES.register("constant")
@dataclass(eq=False, repr=False)
class WarmupScheduler(Schedule):
    """Linear warm-up from 0, then a constant rate; without a warm-up, a constant rate throughout.

    Args:
        warmup_steps: number of warm-up steps; 0 for none.

    Raises:
        ConfigError: if `warmup_steps` is negative.
    """

    warmup_steps: NonNegative

    def __call__(self, step: int) -> float:
        return step / self.warmup_steps if step < self.warmup_steps else 1.0


@dataclass(eq=False, repr=False)
class Decay(Schedule):
    """Linear warm-up from 0 to 1, then decay to `lr_end_factor` at the end of the run, constant beyond it.

    Args:
        warmup_steps: number of warm-up steps; 0 for none.
        num_train_steps: number of steps until the decay ends.
        lr_end_factor: for linear and cosine, fraction of the learning rate at the end.

    Raises:
        ConfigError: if values are out of range.
    """

    warmup_steps: float
    num_train_steps: float
    lr_end_factor: BelowOne = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        raise_any(warmup_problems(self.warmup_steps, self.num_train_steps))

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return step / self.warmup_steps
        # Beyond the planned end, where a run may continue for a target, the rate keeps its last value.
        progress = (step - self.warmup_steps) / (self.num_train_steps - self.warmup_steps)
        return self.lr_end_factor + (1 - self.lr_end_factor) * self.curve(min(progress, 1.0))

    @abstractmethod
    def curve(self, progress: float) -> float:
        """Compute the decay, from 1 to 0, after a fraction `progress` of the steps after the warm-up."""


@LR_SCHEDULES.register("linear")
class LinearScheduler(Decay):
    """Linear warm-up from 0, then linear decay: `1 − progress`."""

    def curve(self, progress: float) -> float:
        return 1.0 - progress


@LR_SCHEDULES.register("cosine")
class CosineScheduler(Decay):
    """Linear warm-up from 0, then half a cosine period: `(1 + cos(π · progress)) / 2`.

    Source: Loshchilov and Hutter, 2016, arXiv:1608.03983, equation 5, without restarts.
    """

    def curve(self, progress: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * progress))
