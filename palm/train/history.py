"""The only writer and the only reader of `history.jsonl`, which has one line per event of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING

from palm.core.errors import StorageError
from palm.core.io import parse_json, wrap_write_errors, write_text
from palm.core.version import __version__
from palm.train.callbacks import (
    Completed,
    Drawn,
    Ended,
    Evaluated,
    Event,
    Planned,
    PlannedTask,
    Recorded,
    Saved,
    Started,
    Warned,
    event_of,
)

if TYPE_CHECKING:
    from palm.train.loop import Training

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
        self._file: IO[bytes] | None = None
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
        if isinstance(event, Ended):
            self.close()

    def _start(self, event: Started) -> None:
        self.events = self.events or [_plan(event.training)]
        if self.folder is not None:
            path = self.folder / HISTORY_FILE
            with wrap_write_errors(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                # Rewriting the file removes events that were written after the checkpoint.
                write_events(path, self.events)
                self._file = path.open("ab")
        # Add the checkpoint's event if the run was killed between saving it and writing the line.
        if event.resumed_from is not None and self._is_inside(event.resumed_from):
            saved = Saved(event.training.step, "checkpoint", self._relative(event.resumed_from))
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
        if self._file is None or self.folder is None:
            return
        # An error in writing the last line must not hide why the run ended, which may be a full disk.
        has_ended = isinstance(event, Ended)
        with (
            suppress(StorageError) if has_ended else nullcontext(),
            wrap_write_errors(self.folder / HISTORY_FILE),
        ):
            self._file.write(_line(event).encode())
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # a full disk has been reported already
                self._file.close()
            self._file = None


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
        raise StorageError(
            f"{path}: {error.strerror or error}; give the save_path of a run that palm trained"
        ) from error
    for number, text in enumerate(written, start=1):
        try:
            line = parse_json(text.encode())
        except (ValueError, RecursionError):
            # A killed run may leave an incomplete last line; any other line that is not JSON is damage.
            if number == len(written):
                return
            raise _damaged(path, number, "not JSON", text) from None
        try:
            event = event_of(line)
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
