"""PALM's lines about a run: the step, the epoch, the counts at its end; and the first rows, to be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from palm.core.logging import logger
from palm.engine.training.events import Completed, Event, Logged, Started
from palm.engine.training.loop import Step
from palm.engine.training.task import Task
from palm.reader.inspection import readable_rows

FIRST_ROWS = 3
"""Rows of every task's first batch that are shown."""


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


Heading = Callable[[Logged], str]
"""What a step's line begins with; PaddlePALM 2.x words it otherwise than 0.2.1."""


def palm_heading(logged: Logged) -> str:
    """That of PaddlePALM 0.2.1."""
    return f"Global step: {logged.step}. Task: {logged.task}, "


class StepLog:
    """PALM's line of every logged step; behind it the running mean, the rate, and the time gone and left."""

    def __init__(self, heading: Heading = palm_heading) -> None:
        self.heading = heading

    def __call__(self, event: Event) -> None:
        if isinstance(event, Logged):
            logger.info(
                "%sstep %d/%d (epoch %d), loss: %.3f, speed: %.2f steps/s, mean loss: %.3f, "
                "learning rate: %.2e, elapsed: %s, remaining: %s",
                self.heading(event),
                *(event.step_of_epoch, event.steps_per_epoch, event.epoch, event.loss),
                *(event.steps_per_second, event.mean_loss, event.learning_rate),
                *(clock(event.seconds), clock(event.remaining)),
            )


def clock(seconds: float) -> str:
    """`0:01:15`, rounded."""
    return str(timedelta(seconds=round(seconds)))


class RunLog:
    """A line at the end of every epoch of the main task, the first target, and a line per task at the end.

    They tell the realised steps of all tasks beside the planned ones.
    """

    def __init__(self, with_epochs: bool = True) -> None:
        self.with_epochs = with_epochs
        self.tasks: Sequence[Task] = ()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.tasks = event.training.tasks
            tell_short_epochs(self.tasks)
        elif isinstance(event, Step) and self.with_epochs:
            main = next(task for task in self.tasks if task.is_target)
            if event.part_of(main) is not None and main.step % main.steps_per_epoch == 0:
                logger.info("%s: end of epoch %d; %s", main.name, main.epoch, counts(self.tasks))
        elif isinstance(event, Completed):
            made, planned = (
                max(sum(steps), 1)
                for steps in zip(*((task.step, task.expected_steps) for task in self.tasks), strict=True)
            )
            for task in self.tasks:
                logger.info(
                    "%s: %d steps, %d planned (%.1f %% of all, %.1f %% planned)",
                    *(task.name, task.step, task.expected_steps),
                    100 * task.step / made,
                    100 * task.expected_steps / planned,
                )
                rows, trained = task.rows_after(task.step)
                if last := trained % rows:
                    logger.info(
                        "%s: %d of its %d rows were not trained on in the last pass over them, number %d",
                        *(task.name, rows - last, rows, trained // rows + 1),
                    )


FEW = 0.9
"""Of a task's rows; a warning says so where an epoch counts fewer."""


def tell_short_epochs(tasks: Sequence[Task]) -> None:
    """Warn of targets whose epochs, counted in whole steps, are much shorter than a pass over their rows."""
    for task in tasks:
        rows, counted = task.rows_after(task.steps_per_epoch)
        if task.is_target and counted < FEW * rows:
            logger.warning(
                "%s: an epoch counts whole steps, %d of %d rows; for more, set a smaller batch or a larger "
                "num_epochs (its %d steps are %.1f passes over the rows)",
                *(task.name, counted, rows, task.expected_steps),
                task.rows_after(task.expected_steps)[1] / rows,
            )


def counts(tasks: Sequence[Task]) -> str:
    """The realised steps of tasks beside the planned ones: `steps so far / planned: slot 70/140, …`."""
    found = ", ".join(f"{task.name} {task.step}/{task.expected_steps}" for task in tasks)
    return f"steps so far / planned: {found}"


def log_first_rows(event: Event) -> None:
    """Show some rows of every task's first batch as the model sees them: tokens, and what is true of them."""
    for part in event.parts if isinstance(event, Step) else ():
        if part.task.step == 1:
            rows = readable_rows(part.task.reader, part.batches[0], FIRST_ROWS)
            for number, row in enumerate(rows, start=1):
                logger.info("%s: row %d: %s", part.task.name, number, row)
