"""The base class of schedules: the learning rate's factor as a function of the global step alone."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from palm.core.component import Component
from palm.core.errors import ConfigError
from palm.core.registry import Registry


class Schedule(Component, ABC):
    """A learning-rate schedule; it has no state, so a resumed run needs nothing but the step."""

    not_called: ClassVar[Mapping[str, str]] = {
        "_build": "override __call__(step), or derive from palm.lr_sched.base_schedualer.Schedualer"
    }

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The factor of the learning rate in a step, counted from 0 over all tasks."""

    def simplest(self) -> Schedule:
        """Return the schedule with the fewest settings that computes the same, for comparing."""
        return self


def warmup_problems(warmup_steps: float, num_train_steps: float) -> list[str]:
    """Return a line if a warm-up is negative, or as long as the run."""
    if 0 <= warmup_steps < num_train_steps:
        return []
    return [
        f"warmup_steps should be at least 0 and below num_train_steps ({num_train_steps!r}), "
        f"not {warmup_steps!r}"
    ]


LR_SCHEDULES: Registry[type[Schedule]] = Registry("learning-rate schedule", Schedule, "lr_scheduler")

HORIZON = ("warmup_steps", "num_train_steps")
"""Parameters of schedules that the run gives; all others are settings."""


def schedule_of_run(
    name: str,
    num_train_steps: int,
    warmup_proportion: float = 0.0,
    settings: Mapping[str, Any] | None = None,
) -> Schedule:
    """The schedule called `name` over the horizon of a run.

    Args:
        name: an entry of `LR_SCHEDULES`; its constructor takes `warmup_steps`, `num_train_steps` or both.
        num_train_steps: steps of all tasks together.
        warmup_proportion: share of them that warms up; the number of steps is rounded down.
        settings: the constructor's other arguments.

    Raises:
        ConfigError: for what the schedule refuses, such as a warm-up as long as the run, or any at all.
    """
    schedule = LR_SCHEDULES[name]
    horizon = dict(zip(HORIZON, (int(warmup_proportion * num_train_steps), num_train_steps), strict=True))
    # The signature says which part of the horizon a schedule needs, also that of a user's own.
    accepted = inspect.signature(schedule).parameters
    if warmup_proportion > 0 and "warmup_steps" not in accepted:
        raise ConfigError(f"warmup_proportion: {name} has no warm-up of this kind; leave it out")
    return schedule(**{key: value for key, value in horizon.items() if key in accepted}, **settings or {})
