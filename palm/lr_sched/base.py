"""Base class of schedules: the learning-rate factor as a function of the global step."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from palm.core.checks import number_problems, positive_problems
from palm.core.component import Component
from palm.core.errors import ConfigError, about
from palm.core.registry import Registry


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
        warmup_proportion: fraction of them for the warm-up; the number of steps is rounded down.
        settings: the constructor's other arguments.

    Raises:
        ConfigError: for arguments that the schedule rejects, or a warm-up that it does not have.
    """
    schedule = LR_SCHEDULES[name]
    horizon = dict(zip(HORIZON, (int(warmup_proportion * num_train_steps), num_train_steps), strict=True))
    # The signature shows which parts of the horizon a schedule needs, including a user's own.
    accepted = inspect.signature(schedule).parameters
    if warmup_proportion > 0 and "warmup_steps" not in accepted:
        raise ConfigError(about("warmup_proportion", f" is not supported by {name}; leave it out"))
    return schedule(**{key: value for key, value in horizon.items() if key in accepted}, **settings or {})
