"""PALM's log lines of a run: steps, epochs, final counts, and the first rows of every task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from palm.core.logging import logger
from palm.reader.inspection import readable_rows
from palm.train.events import Completed, Event, Logged, Started
from palm.train.loop import Step
from palm.train.task import TaskState

FIRST_ROWS = 3
"""Number of rows of every task's first batch that are logged."""


Heading = Callable[[Logged], str]
"""Makes the beginning of a step's line, which differs between PaddlePALM 2.x and 0.2.1."""


def palm_heading(logged: Logged) -> str:
    """Return the heading of PaddlePALM 0.2.1."""
    return f"Global step: {logged.step}. Task: {logged.task}, "


class StepLog:
    """A callback that logs steps in PALM's format, followed by mean loss, learning rate and times."""

    def __init__(self, heading: Heading = palm_heading) -> None:
        self.heading = heading

    def __call__(self, event: Event) -> None:
        if isinstance(event, Logged):
            logger.info(
                "%sstep %d/%d (epoch %d), loss: %.3f, speed: %.2f steps/s, mean loss: %.3f, "
                "learning rate: %.2e, elapsed: %s, remaining: %s",
                self.heading(event),
                event.step_of_epoch,
                event.steps_per_epoch,
                event.epoch,
                event.loss,
                event.steps_per_second,
                event.mean_loss,
                event.learning_rate,
                clock(event.seconds),
                clock(event.remaining),
            )


def clock(seconds: float) -> str:
    """Format seconds as `0:01:15`, rounded."""
    return str(timedelta(seconds=round(seconds)))


class RunLog:
    """A callback that logs actual and planned steps, after epochs of the main task and at the end.

    The main task is the first target.
    """

    def __init__(self, with_epochs: bool = True) -> None:
        self.with_epochs = with_epochs
        self.tasks: Sequence[TaskState] = ()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.tasks = event.training.tasks
            warn_of_short_epochs(self.tasks)
        elif isinstance(event, Step) and self.with_epochs:
            main = next(task for task in self.tasks if task.is_target)
            if event.part_of(main) is not None and main.step % main.steps_per_epoch == 0:
                counts = ", ".join(f"{task.name} {task.step}/{task.expected_steps}" for task in self.tasks)
                logger.info("%s: end of epoch %d; steps so far / planned: %s", main.name, main.epoch, counts)
        elif isinstance(event, Completed):
            made = max(sum(task.step for task in self.tasks), 1)
            planned = max(sum(task.expected_steps for task in self.tasks), 1)
            for task in self.tasks:
                logger.info(
                    "%s: %d steps, %d planned (%.1f %% of all, %.1f %% planned)",
                    task.name,
                    task.step,
                    task.expected_steps,
                    100 * task.step / made,
                    100 * task.expected_steps / planned,
                )
                rows, trained = task.rows_after(task.step)
                if last := trained % rows:
                    logger.info(
                        "%s: %d of its %d rows were not trained on in the last pass over them, number %d",
                        task.name,
                        rows - last,
                        rows,
                        trained // rows + 1,
                    )


SHORT_EPOCH = 0.9
"""Fraction of a task's rows below which an epoch is considered short."""


def warn_of_short_epochs(tasks: Sequence[TaskState]) -> None:
    """Warn of targets whose epochs, in whole steps, are much shorter than a pass over their rows."""
    for task in tasks:
        rows, counted = task.rows_after(task.steps_per_epoch)
        if task.is_target and counted < SHORT_EPOCH * rows:
            logger.warning(
                "%s: an epoch counts whole steps, %d of %d rows; to cover more, use a smaller batch or a "
                "larger num_epochs (its %d steps are %.1f passes over the rows)",
                task.name,
                counted,
                rows,
                task.expected_steps,
                task.rows_after(task.expected_steps)[1] / rows,
            )


def log_first_rows(event: Event) -> None:
    """Log some rows of every task's first batch as the model sees them, with their targets."""
    for part in event.parts if isinstance(event, Step) else ():
        # The task's first step is already counted here; a resumed run is past it.
        if part.task.step == 1:
            rows = readable_rows(part.task.reader, part.batches[0], FIRST_ROWS)
            for number, row in enumerate(rows, start=1):
                logger.info("%s: row %d: %s", part.task.name, number, row)
