"""The only function that runs a training; observers receive the same events from both interfaces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palm.core.files.door import make_folder
from palm.core.files.fs import write_text
from palm.core.invocation import is_notebook
from palm.core.limits import explain_limits
from palm.core.logging import Progress, collected_warnings, logger
from palm.core.numerics.precision import tf32
from palm.core.numerics.repeatability import fixed_order
from palm.core.signals import Stopped
from palm.parallel.group import is_main_process
from palm.train.events import Completed, Ended, Event, Observer, Started, Warned, notify
from palm.train.history import HistoryWriter
from palm.train.logs import Heading, RunLog, palm_heading
from palm.train.loop import Training
from palm.train.progress import watchers
from palm.train.result import TrainingResult, result_of
from palm.train.run_names import BAD_ROWS
from palm.train.task import Task
from palm.train.throughput import Meter


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Settings for logging and observing a run.

    Args:
        every: log a step every so many global steps; 0 or less: never.
        progress: the kind of progress display.
        heading: makes the beginning of a step's log line.
        with_epochs: log a line at the end of every epoch of the main task.
        folder: the folder of `history.jsonl`; None: no history is written.
        configuration: the resolved settings, for trackers.
        observers: trackers and the user's callbacks, called with every event, in order.
        resumed_from: the checkpoint that the run resumes from.
        warned: a list of warnings that already collects; None: collect them from now on.
    """

    every: int = 5
    progress: Progress = "auto"
    heading: Heading = palm_heading
    with_epochs: bool = True
    folder: Path | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    observers: Sequence[Observer] = ()
    resumed_from: Path | None = None
    warned: list[str] | None = None


def _events(training: Training, watch: Watch) -> Iterator[Event]:
    """Train, and yield all events of the run except `Ended`."""
    yield Started(training, watch.folder, watch.configuration, watch.resumed_from)
    yield from training.steps()
    yield Completed(training.step)


@explain_limits()
def run_training(training: Training, actors: Sequence[Observer], watch: Watch) -> TrainingResult:
    """Train to the end, and call all observers with every event.

    Observers that only read are called before those that evaluate and save, so a step is recorded before
    its consequences. Only rank 0 has a progress display and files.

    Args:
        training: the run.
        actors: observers that evaluate, save, and end tasks early; called with every event, in order.
        watch: logging and other observers.
    """
    history = HistoryWriter(training, watch.folder if is_main_process() else None)
    # The meter is first: it computes the values that the others show.
    meter = Meter(training, watch.every, history.seconds)
    observers: list[Observer] = [
        meter,
        history,
        *(watchers(watch.progress, watch.heading) if is_main_process() else ()),
        RunLog(watch.with_epochs),
        *watch.observers,
        *actors,
    ]

    def log_due_steps() -> None:
        for line in meter.due():
            notify(line, observers)

    training.when_settled = log_due_steps
    recipe = training.recipe
    with collected_warnings() as collected, tf32(recipe.tf32), fixed_order(recipe.deterministic):
        warned = collected if watch.warned is None else watch.warned
        try:
            write_bad_rows(watch.folder, training.tasks)
            for event in _events(training, watch):
                notify(event, observers)
                while warned:  # observers may warn too
                    notify(Warned(training.step, warned.pop(0)), observers)
        except BaseException as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "stopped"
            with suppress(Exception):  # the original error is the one to report
                notify(Ended(training.step, reason), observers)
            # A notebook cell that was interrupted returns the partial result.
            if not (isinstance(error, Stopped) and is_notebook()):
                raise
        else:
            notify(Ended(training.step, "finished"), observers)
    steps = {task.name: task.step for task in training.tasks}
    planned = {task.name: task.expected_steps for task in training.tasks}
    result = result_of(history.lines, steps, planned, history.seconds())
    return replace(result, losses={**result.losses, **meter.means()})


def write_bad_rows(folder: Path | None, tasks: Sequence[Task]) -> None:
    """Write `bad_rows.jsonl`, one line for each of a file's first bad rows, and log its path.

    Nothing is written if there are no such rows, without a folder, or on ranks other than 0.

    Raises:
        StorageError: the folder cannot be written.
    """
    if folder is None or not is_main_process():
        return
    lines = []
    total = 0
    for task in tasks:
        assert task.stream is not None, "the training data is not loaded"
        for records, count in (task.stream.rows.bad, task.bad_dev_rows):
            lines += [json.dumps({"task": task.name, **record}, ensure_ascii=False) for record in records]
            total += count
    if total:
        make_folder(folder)
        write_text(folder / BAD_ROWS, "\n".join(lines) + "\n")
        listed = "" if len(lines) == total else f" the first {len(lines)} of"
        logger.warning(
            "%s lists%s the rows that were skipped or repaired: %d", folder / BAD_ROWS, listed, total
        )
