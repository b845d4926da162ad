"""PALM's lines about a run: the step, the epoch, the counts at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from palm.core.logging import logger
from palm.engine.loop import Step, Training
from palm.engine.task import Task


class Pace:
    """How fast steps go by."""

    def __init__(self) -> None:
        self._steps, self._since = 0, time.perf_counter()

    def count(self) -> None:
        """One more step."""
        self._steps += 1

    def speed(self) -> float:
        """Steps per second since the last call, or since the beginning."""
        now = time.perf_counter()
        speed = self._steps / max(now - self._since, 1e-9)
        self._steps, self._since = 0, now
        return speed


class StepLog:
    """PALM's line every `every` global steps: task, its step and epoch, loss, speed since the last line.

    Args:
        every: 0 or less: never.
        heading: what a line begins with; PaddlePALM 2.x words it otherwise than 0.2.1.
    """

    def __init__(self, every: int, heading: Callable[[Step], str] | None = None) -> None:
        self.every = every
        self.heading = heading or (lambda step: f"Global step: {step.number}. Task: {step.task.name}, ")
        self._pace = Pace()

    def __call__(self, step: Step) -> None:
        self._pace.count()
        if self.every <= 0 or step.number % self.every:
            return
        logger.info(
            "%sstep %d/%d (epoch %d), loss: %.3f, speed: %.2f steps/s",
            self.heading(step),
            (step.task.step - 1) % step.task.steps_per_epoch + 1,
            step.task.steps_per_epoch,
            step.task.epoch,
            step.loss.item(),
            self._pace.speed(),
        )


class EpochLog:
    """A line at the end of every epoch of the main task, the first target: the steps of all tasks so far."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.main = next(task for task in training.tasks if task.is_target)

    def __call__(self, step: Step) -> None:
        if step.task is self.main and self.main.step % self.main.steps_per_epoch == 0:
            logger.info(
                "%s: end of epoch %d; %s", self.main.name, self.main.epoch, counts(self.training.tasks)
            )


def counts(tasks: Sequence[Task]) -> str:
    """The realised steps of tasks beside the planned ones: `steps so far / planned: slot 70/140, …`."""
    found = ", ".join(f"{task.name} {task.step}/{task.expected_steps}" for task in tasks)
    return f"steps so far / planned: {found}"


def log_counts(training: Training) -> None:
    """A line per task at the end of a run: its realised steps, planned steps and share of all steps."""
    for task in training.tasks:
        share = 100 * task.step / max(training.step, 1)
        planned = 100 * task.expected_steps / max(training.total_steps, 1)
        logger.info(
            "%s: %d steps, %d planned (%.1f %% of all, %.1f %% planned)",
            *(task.name, task.step, task.expected_steps, share, planned),
        )
