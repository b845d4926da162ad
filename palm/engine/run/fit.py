"""The only function that runs a training; all observers hear the same events, whichever interface is used."""

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
from palm.distributed.group import is_first
from palm.engine.run.result import TrainingResult, result_of
from palm.engine.run.run_names import BAD_ROWS
from palm.engine.training.events import Completed, Ended, Event, Observer, Started, Warned, tell
from palm.engine.training.loop import Training
from palm.engine.training.task import Task
from palm.engine.watching.history import HistoryWriter
from palm.engine.watching.logs import Heading, RunLog, palm_heading
from palm.engine.watching.progress import watchers
from palm.engine.watching.throughput import Meter


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Logging and observation of a run.

    Args:
        every: steps are logged every so many global steps; 0 or less: never.
        progress: how the run shows how far it is.
        heading: what a step's line begins with.
        with_epochs: a line at the end of every epoch of the main task.
        folder: where `history.jsonl` goes; None for nowhere.
        configuration: the resolved settings, for trackers.
        observers: trackers and the user's callbacks, called with every event, in order.
        resumed_from: the checkpoint that the run resumes from.
        warned: warnings from before, and those that come; None to collect them from now on.
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
    """Train, and yield the events of the run but for its end."""
    yield Started(training, watch.folder, watch.configuration, watch.resumed_from)
    yield from training.steps()
    yield Completed(training.step)


@explain_limits()
def run_training(training: Training, actors: Sequence[Observer], watch: Watch) -> TrainingResult:
    """Train to the end, and call all observers with every event.

    Those who look come before those who evaluate and save, so that a step is written down before what
    follows from it. Of several ranks, all but the first have no display and no files.

    Args:
        training: the run.
        actors: what evaluates, saves, and ends tasks early; called with every event, in order.
        watch: logging and observers.
    """
    history = HistoryWriter(training, watch.folder if is_first() else None)
    # Whoever reads numbers comes before whoever acts on them; the meter, which makes them, is the first.
    meter = Meter(training, watch.every, history.seconds)
    observers: list[Observer] = [
        meter,
        history,
        *(watchers(watch.progress, watch.heading) if is_first() else ()),
        RunLog(watch.with_epochs),
        *watch.observers,
        *actors,
    ]

    def tell_numbers() -> None:
        for line in meter.due():
            tell(line, observers)

    training.when_settled = tell_numbers
    recipe = training.recipe
    with collected_warnings() as collected, tf32(recipe.tf32), fixed_order(recipe.deterministic):
        warned = collected if watch.warned is None else watch.warned
        try:
            write_bad_rows(watch.folder, training.tasks)
            for event in _events(training, watch):
                tell(event, observers)
                while warned:  # observers may warn, too
                    tell(Warned(training.step, warned.pop(0)), observers)
        except BaseException as error:
            is_asked = isinstance(error, (KeyboardInterrupt, SystemExit))
            with suppress(Exception):  # what ended the run is the error that counts
                tell(Ended(training.step, "interrupted" if is_asked else "stopped"), observers)
            if not (isinstance(error, Stopped) and is_notebook()):  # there, the cell ends with what there is
                raise
        else:
            tell(Ended(training.step, "finished"), observers)
    steps = {task.name: task.step for task in training.tasks}
    planned = {task.name: task.expected_steps for task in training.tasks}
    found = result_of(history.lines, steps, planned, history.seconds())
    return replace(found, losses={**found.losses, **meter.means()})


def write_bad_rows(folder: Path | None, tasks: Sequence[Task]) -> None:
    """Write `bad_rows.jsonl` where there are such rows, and name it: one row a line, of every file the first.

    Nothing is written without a folder, or on ranks but the first.

    Raises:
        StorageError: the folder cannot be written.
    """
    if folder is None or not is_first():
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
            "%s lists%s the rows that were left out or repaired: %d", folder / BAD_ROWS, listed, total
        )
