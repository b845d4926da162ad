"""What a schedule is: the learning rate's factor as a function of the global step alone."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

from palm.component import Component
from palm.registry import Registry


class Schedule(Component, ABC):
    """A learning-rate schedule; it has no state, so a resumed run needs nothing but the step."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The factor of the learning rate in a step, counted from 0 over all tasks."""


LR_SCHEDULES: Registry[type[Schedule]] = Registry("learning-rate schedule")


def schedule_of_run(name: str, num_train_steps: int, warmup_proportion: float = 0.0) -> Schedule:
    """The schedule called `name` over the horizon of a run.

    Args:
        name: an entry of `LR_SCHEDULES`; its constructor takes `warmup_steps`, `num_train_steps` or both.
        num_train_steps: steps of all tasks together.
        warmup_proportion: share of them that warms up; the number of steps is rounded down.

    Raises:
        ConfigError: for what the schedule refuses, such as a warm-up as long as the run.
    """
    schedule = LR_SCHEDULES[name]
    horizon = {
        "warmup_steps": int(warmup_proportion * num_train_steps),
        "num_train_steps": num_train_steps,
    }
    accepted = inspect.signature(schedule).parameters
    return schedule(**{key: value for key, value in horizon.items() if key in accepted})
