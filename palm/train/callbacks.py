"""What watches a run: callbacks, the events that they see, and the file of events."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from palm.core.errors import StorageError
from palm.core.io import make_folder, parse_json, wrap_write_errors, write_text
from palm.core.records import record_of
from palm.core.version import __version__

if TYPE_CHECKING:
    from palm.train.loop import Training


NOT_RECORDED: Mapping[str, Any] = {"recorded": False}
"""Metadata of a field that can be derived from others and is not part of an event's line."""


RECORDED: dict[str, type[Recorded]] = {}
"""Name in the history -> the event class."""


class Event:
    """Base class of everything that happens in a run, `palm.train.loop.Step` included."""


@dataclass(frozen=True)
class Recorded(Event):
    """Base class of the events that have a line in the history.

    Args:
        step: the global step after which it happened.

    Attributes:
        recorded_as: its name in the history.
    """

    recorded_as: ClassVar[str]
    step: int

    def __init_subclass__(cls, recorded_as: str) -> None:
        cls.recorded_as = recorded_as
        RECORDED[recorded_as] = cls

    def as_line(self) -> dict[str, Any]:
        """Return the event as JSON, without fields that are None; values that are not finite become null."""
        line: dict[str, Any] = {"event": self.recorded_as}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and each.metadata != NOT_RECORDED:
                line[each.name] = _as_json(value)
        return line


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    # JSON has no NaN or infinity; `event_of` reads null as NaN.
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return value.as_posix()
    if is_dataclass(value):
        return vars(value)
    return list(value) if isinstance(value, tuple) else value


def event_of(line: Any) -> Recorded | None:
    """Return the event of a line of a history; None if this version of palm does not know it.

    Unknown fields are ignored.

    Raises:
        ValueError: not an event with a step, or a field is missing or has the wrong type; it is named.
    """
    facts = line if isinstance(line, dict) else {}
    if not (isinstance(facts.get("step"), int) and isinstance(facts.get("event"), str)):
        raise ValueError("not an event with a step")
    kind = RECORDED.get(facts["event"])
    if kind is None:
        return None
    try:
        # Fields that are None are not recorded, so null stands for a value that is not finite.
        return record_of(kind, {name: math.nan if value is None else value for name, value in line.items()})
    except ValueError as error:
        raise ValueError(f"{line['event']!r} is damaged, {error}") from None


@dataclass(frozen=True)
class Started(Event):
    """The run is about to start or resume.

    Args:
        training: the run; `training.step` is the step it starts from, `training.config` its configuration.
        folder: the folder it writes to; None if it writes nothing.
    """

    training: Training
    folder: Path | None = None


@dataclass(frozen=True)
class PlannedTask:
    """The plan of one task.

    Args:
        is_target: True if it gets an exact number of steps and a saved model.
        expected_steps: number of planned steps.
        steps_per_epoch: number of steps in one pass over its rows.
        rows: number of training rows.
        mix_ratio: how often it is drawn, relative to the others.
    """

    is_target: bool = True
    expected_steps: int = 0
    steps_per_epoch: int = 0
    rows: int = 0
    mix_ratio: float = 1.0


@dataclass(frozen=True)
class Planned(Recorded, recorded_as="start"):
    """The plan of a run, the first line of its history.

    Args:
        step: the global step at which it begins.
        version: version of the file format.
        palm: version of palm.
        time: ISO 8601, UTC.
        total_steps: planned steps of the whole run.
        precision: fp32 or bf16.
        device: kind of device.
        tasks: task -> its plan, in order.
    """

    step: int = 0
    version: int = 1
    palm: str = ""
    time: str = ""
    total_steps: int = 0
    precision: str = ""
    device: str = ""
    tasks: Mapping[str, PlannedTask] = field(default_factory=dict)


@dataclass(frozen=True)
class Logged(Recorded, recorded_as="step"):
    """The values of a logged step, fetched from the device together.

    Args:
        step: global step, from 1.
        task: the drawn task; if a step has several, each is logged.
        task_step: number of the task's steps so far.
        epoch: epoch of the task, from 0.
        loss: loss of this step's batch.
        mean_loss: mean loss of the task's steps since the last logged step.
        learning_rate: learning rate of the update.
        grad_norm: norm of the gradient before clipping.
        rows: rows of all tasks and devices since the run began.
        tokens: tokens of these rows, without padding.
        seconds: time since the run began, including earlier parts of a resumed run.
        memory_bytes: peak memory of tensors on the GPU, or of the process on a CPU; None if unknown.
        step_of_epoch: step of the task within its epoch, from 1.
        steps_per_epoch: steps per epoch of the task.
        remaining: seconds until the planned end, at the speed so far.
        steps_per_second: speed since the last logged step, including evaluation and saving.
        rows_per_second: the same for rows.
        tokens_per_second: the same for tokens.
    """

    step: int
    task: str
    task_step: int = 0
    epoch: int = 0
    loss: float = math.nan
    mean_loss: float = math.nan
    learning_rate: float = math.nan
    grad_norm: float = math.nan
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    memory_bytes: int | None = None
    step_of_epoch: int = field(default=0, metadata=NOT_RECORDED)
    steps_per_epoch: int = field(default=0, metadata=NOT_RECORDED)
    remaining: float = field(default=0.0, metadata=NOT_RECORDED)
    steps_per_second: float = field(default=0.0, metadata=NOT_RECORDED)
    rows_per_second: float = field(default=0.0, metadata=NOT_RECORDED)
    tokens_per_second: float = field(default=0.0, metadata=NOT_RECORDED)


@dataclass(frozen=True)
class Losses(Recorded, recorded_as="losses"):
    """The mean loss of every task between two logged steps.

    Args:
        step: the later one.
        means: task -> mean of the losses of its steps since the one before; only tasks that had steps.
    """

    step: int
    means: Mapping[str, float]


@dataclass(frozen=True)
class Drawn(Recorded, recorded_as="draws"):
    """The number of steps of every task after a global step."""

    step: int
    steps: Mapping[str, int]


@dataclass(frozen=True)
class ScoredRows:
    """What the scores of a task's dev rows stand beside.

    Args:
        rows: their number.
        baseline: the same scores without any knowledge of the texts (see `Metric.baseline`).
        intervals: 95 % intervals of the scores (see `score_intervals`).
        labels: label -> precision, recall, F1, true and predicted occurrences; the most frequent first.
        averages: the same for micro, macro and weighted average; empty if there are fewer than two labels.
    """

    rows: int = 0
    baseline: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    averages: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated(Recorded, recorded_as="evaluation"):
    """One evaluation.

    Args:
        step: the global step after which it took place.
        scores: task -> its scores by name, those of the deciding metric first.
        dev_loss: task -> mean loss of its dev rows; only tasks whose rows to evaluate have targets.
        best: tasks for which this is the best evaluation so far.
        mean: mean normalized score of all targets; NaN if one is not a number.
        seconds: time since the run began; only in the history.
        rows: task -> the rows that it was scored on, and what its scores stand beside.
    """

    step: int
    scores: Mapping[str, Mapping[str, float]]
    dev_loss: Mapping[str, float] = field(default_factory=dict)
    best: Sequence[str] = ()
    mean: float | None = None
    seconds: float | None = None
    rows: Mapping[str, ScoredRows] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved(Recorded, recorded_as="saved"):
    """A model or a checkpoint was saved.

    Args:
        step: the global step.
        kind: target, best, best_overall, last_overall, on_the_way or checkpoint.
        path: the directory; in the history, relative to the run's folder if it is inside.
        task: the task of a model; None for a checkpoint and a model of all targets.
    """

    step: int
    kind: str
    path: Path
    task: str | None = None


@dataclass(frozen=True)
class Warned(Recorded, recorded_as="warning"):
    """palm logged a warning after a global step."""

    step: int
    message: str


@dataclass(frozen=True)
class Completed(Event):
    """The last step is complete; callbacks that evaluate or save at the end do so now."""

    step: int


@dataclass(frozen=True)
class Stopping(Event):
    """A signal ends the run after this global step; a checkpoint is saved now."""

    step: int


@dataclass(frozen=True)
class Ended(Recorded, recorded_as="end"):
    """No more events follow.

    Args:
        step: the last global step.
        reason: finished; interrupted (by a signal or Ctrl-C); or stopped (by an error).
        seconds: time since the run began.
        error: the message of the error that stopped it.
    """

    step: int
    reason: str
    seconds: float = 0.0
    error: str | None = None


Callback = Callable[[Any], object]
"""A callable that receives every event. It must not change the training. If it returns an event, or a list of
events, all callbacks receive these immediately, before the next callback receives the current event."""


def notify(event: Event, callbacks: Sequence[Callback]) -> None:
    """Call all callbacks with an event, in order, and immediately with the events that they return."""
    for callback in callbacks:
        answers = callback(event)
        for answer in answers if isinstance(answers, list) else (answers,):
            if isinstance(answer, Event):
                notify(answer, callbacks)


def callback_problems(callbacks: object) -> list[str]:
    """Check callbacks that were given from Python; return a sentence per problem."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        return [f"callbacks should be a list of functions or other callables, not {callbacks!r}"]
    if classes := [each.__name__ for each in callbacks if isinstance(each, type)]:
        return [f"callbacks should contain objects, not the class {classes[0]}; write {classes[0]}(...)"]
    return []


HISTORY_FILE = "history.jsonl"
HISTORY_VERSION = 1


class HistoryWriter:
    """A callback that keeps the recorded events of a run and writes each one to a file immediately.

    A resumed run removes the events that came after its checkpoint.

    Args:
        training: the run.
        folder: the folder of the file; None: events are kept only in memory.

    Attributes:
        events: all recorded events so far, including those of earlier parts of a resumed run.
    """

    def __init__(self, training: Training, folder: Path | None) -> None:
        self.folder = folder
        self.events: list[Recorded] = []
        self._training = training
        if training.step > 0 and folder is not None and (folder / HISTORY_FILE).is_file():
            self.events = events_until(read_events(folder / HISTORY_FILE), training.step)
        # The clock continues from the last event with a time, so the time between two parts does not count.
        self._began = time.perf_counter() - seconds_of(self.events)

    def seconds(self) -> float:
        """Return the time since the run began, including earlier parts of a resumed run."""
        return time.perf_counter() - self._began

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        if isinstance(event, Completed | Evaluated):
            self._write_draws()
        if isinstance(event, Evaluated | Ended):
            event = replace(event, seconds=round(self.seconds(), 3))
        elif isinstance(event, Saved):
            event = replace(event, path=self._relative(event.path))
        # Warnings about the data are repeated when a run resumes.
        is_known = isinstance(event, Warned) and event.message in [
            each.message for each in self.events if isinstance(each, Warned)
        ]
        if isinstance(event, Recorded) and not is_known:
            self._write(event)

    def _start(self, event: Started) -> None:
        self.events = self.events or [_plan(event.training)]
        if self.folder is not None:
            make_folder(self.folder)
            # Rewriting the file removes events that were written after the checkpoint.
            write_events(self.folder / HISTORY_FILE, self.events)
        # Add the checkpoint's event if the run was killed between saving it and writing the line.
        checkpoint = event.training.resumed_from
        if checkpoint is not None and self._is_inside(checkpoint):
            saved = Saved(event.training.step, "checkpoint", self._relative(checkpoint))
            if saved not in self.events:
                self._write(saved)

    def _write_draws(self) -> None:
        drawn = Drawn(self._training.step, {task.name: task.step for task in self._training.tasks})
        if drawn != next((each for each in reversed(self.events) if isinstance(each, Drawn)), None):
            self._write(drawn)

    def _is_inside(self, path: Path) -> bool:
        return self.folder is not None and path.resolve().is_relative_to(self.folder.resolve())

    def _relative(self, path: Path) -> Path:
        """Return a path relative to the folder, if it is inside."""
        if self.folder is None or not self._is_inside(path):
            return path
        return path.resolve().relative_to(self.folder.resolve())

    def _write(self, event: Recorded) -> None:
        self.events.append(event)
        if self.folder is None:
            return
        path = self.folder / HISTORY_FILE
        # An error in writing the last line must not hide why the run ended, which may be a full disk.
        hidden = (StorageError,) if isinstance(event, Ended) else ()
        with suppress(*hidden), wrap_write_errors(path), path.open("ab") as file:
            file.write(_line(event).encode())


def _plan(training: Training) -> Planned:
    tasks = {
        task.name: PlannedTask(
            task.is_target,
            task.expected_steps,
            task.steps_per_epoch,
            len(task.stream.rows),
            task.task.mix_ratio,
        )
        for task in training.tasks
    }
    now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Planned(
        training.step,
        HISTORY_VERSION,
        __version__,
        now,
        training.total_steps,
        training.model.precision,
        training.device.type,
        tasks,
    )


def events_until(events: Sequence[Recorded], step: int) -> list[Recorded]:
    """Return the events up to the checkpoint of a step, which is the last thing that a step does."""
    for number, event in enumerate(events):
        if isinstance(event, Saved) and (event.kind, event.step) == ("checkpoint", step):
            return list(events[: number + 1])
    # The run was killed between saving the checkpoint and recording it.
    return [event for event in events if event.step <= step and not isinstance(event, Ended)]


def seconds_of(events: Sequence[Recorded]) -> float:
    """Return the time of the last event that has one; 0 if there is none."""
    found = (getattr(event, "seconds", None) for event in reversed(events))
    return next((float(seconds) for seconds in found if seconds is not None), 0.0)


def _line(event: Recorded) -> str:
    return json.dumps(event.as_line(), ensure_ascii=False) + "\n"


def write_events(path: Path, events: Iterable[Recorded]) -> None:
    """Replace a history atomically, so no event is lost if the process is killed.

    Raises:
        StorageError: the file cannot be written.
    """
    write_text(path, "".join(map(_line, events)))


def read_events(path: Path) -> list[Recorded]:
    """Return the events of a history that this version of palm knows.

    An incomplete last line, left by a killed run, is ignored.

    Raises:
        StorageError: the file cannot be read, a line is not an event, or a newer version of palm wrote it.
    """
    return list(_read(path))


def _read(path: Path) -> Iterator[Recorded]:
    try:
        written = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    except OSError as error:
        remedy = "give the save_path of a run that palm trained"
        raise StorageError(f"{path}: {error.strerror or error}; {remedy}") from error
    for number, text in enumerate(written, start=1):
        try:
            event = event_of(parse_json(text.encode()))
        except (json.JSONDecodeError, RecursionError):
            # A killed run may leave an incomplete last line; any other line that is not JSON is damage.
            if number == len(written):
                return
            raise _damaged(path, number, "not JSON", text) from None
        except ValueError as error:
            raise _damaged(path, number, str(error), text) from None
        if isinstance(event, Planned) and event.version > HISTORY_VERSION:
            raise StorageError(
                f"{path} has version {event.version}, but this palm reads {HISTORY_VERSION}; use a newer palm"
            )
        if event is not None:
            yield event


def _damaged(path: Path, number: int, cause: str, text: str) -> StorageError:
    return StorageError(
        f"{path}:{number}: {cause}: {text[:60]!r}; restore the file, or remove it to start a new one"
    )
