"""The folder of a run: a new run begins, an interrupted one continues, a finished one stays."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from palm.core.errors import ResourceError, StorageError, TrainingError, shortened
from palm.core.io import (
    foreign_files,
    is_sealed,
    locked,
    make_folder,
    numbered,
    read_json,
    remove_stale,
    set_aside,
    wrap_read_errors,
    write_json,
)
from palm.core.logging import logger
from palm.core.records import read_record
from palm.reader.predictions import PREDICTION_FILES
from palm.reader.tables.files import SUFFIX
from palm.train import model_paths as names
from palm.train.callbacks import HISTORY_FILE, Drawn, Planned, read_events, seconds_of
from palm.train.checkpoint import differences, newest_checkpoint
from palm.train.result import TrainingResult, result_of

MOST_FOLDERS = 3
"""Maximum number of folders that a message names."""


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Lock `folder` against other runs; fail at once if it is locked.

    Raises:
        StorageError: another run holds the lock, or the folder cannot be written.
    """
    is_new = not folder.exists()
    make_folder(folder)
    lock = folder / names.LOCK
    taken = f"save_path: {folder} is in use by another run; wait until it ends, or give another save_path"
    try:
        with locked(lock, taken=taken):
            yield
    finally:
        # A run that failed before it began leaves nothing behind. Otherwise the lock file stays: a process
        # that has just opened it would lock a deleted file.
        if is_new and [place.name for place in folder.iterdir()] == [names.LOCK]:
            lock.unlink()
            folder.rmdir()


@dataclass(frozen=True)
class RunStart:
    """The starting point of a run.

    Args:
        run_id: the id stored in its checkpoints.
        checkpoint: the checkpoint to resume from; None to start from the beginning.
        continues: True if the run in the folder is to be continued, with or without a checkpoint.
    """

    run_id: str
    checkpoint: Path | None = None
    continues: bool = False


@dataclass(frozen=True)
class RunFolder:
    """A run's `save_path`, used only by rank 0.

    Args:
        path: the folder.
        resume: the setting: a checkpoint, 'auto' or None.
        overwrite: the setting: a new run may take the folder of an earlier one.
        inputs: files that the run reads.
    """

    path: Path
    resume: str | None = None
    overwrite: bool = False
    inputs: Sequence[Path] = ()
    _locks: ExitStack = field(default_factory=ExitStack, compare=False)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, and remove what a run that died left unfinished.

        Raises:
            StorageError: another run holds the lock, or the folder cannot be written.
        """
        with self._locks:
            self._locks.enter_context(only_run_in(self.path))
            for folder in (self.path, *(place for place in self.path.iterdir() if place.is_dir())):
                remove_stale(folder, is_locked=True)
            yield

    def open(self) -> RunStart:
        """Choose the start of the run; nothing changes on disk.

        Raises:
            StorageError: an earlier run is in the folder that may be neither continued nor moved.
        """
        if is_sealed(self.path):
            what = "a saved model or a checkpoint"
            raise StorageError(f"save_path: {self.path} is {what}; give another folder")
        record = read_run_record(self.path)
        if self.resume == "auto":
            return self._continued(record)
        checkpoint = None if self.resume is None else Path(self.resume)
        if checkpoint is not None and checkpoint.resolve().parent == self.path.resolve():
            return RunStart(run_of(checkpoint) or _new_id(), checkpoint, continues=True)
        found = saved_in(self.path)
        if found and self.overwrite:
            self._check_movable()
        elif found and (record is None or not record["finished"]):
            raise StorageError(self.refusal())
        elif (place := self._needed_inside()) is not None:
            problem = "so a later run cannot move the folder aside; give the run a folder of its own"
            logger.warning("save_path: %s also holds %s, which is needed, %s", self.path, place, problem)
        return RunStart(_new_id(), checkpoint)

    def _continued(self, record: names.RunRecord | None) -> RunStart:
        # Checkpoints are selected by run id: the folder may hold copies of others.
        checkpoint = newest_checkpoint(self.path, None if record is None else record["id"])
        run_id = record["id"] if record else checkpoint and run_of(checkpoint)
        if checkpoint is None:
            log = logger.warning if (self.path / HISTORY_FILE).exists() else logger.info
            log("resume: no checkpoint of this run under %s; starting from the beginning", self.path)
        return RunStart(run_id or _new_id(), checkpoint, continues=True)

    def finished(self, start: RunStart, identity: dict[str, Any], total_steps: int) -> TrainingResult | None:
        """Return the result of the same run if it is finished already; None if the run has work to do.

        Args:
            start: returned by `open`.
            identity: everything that the losses of the run depend on.
            total_steps: its planned steps.

        Raises:
            StorageError: the run in the folder is another one, or longer without a checkpoint to continue.
        """
        is_replaced = self.overwrite and not start.continues
        if is_replaced or self.resume not in (None, "auto") or not saved_in(self.path):
            return None
        record = read_run_record(self.path)
        lines = self._differences(record, identity)
        is_finished = record is not None and record["finished"] is not None
        if record is not None and is_finished and not lines and record["total_steps"] == total_steps:
            log = logger.warning if self.overwrite else logger.info
            more = ", without resume" if self.overwrite else ""
            log("%s: this run is finished already; to train it again, set overwrite: true%s", self.path, more)
            return result_in(self.path)
        is_lost = start.checkpoint is None and (is_finished or bool(lines)) and not self.overwrite
        if is_lost or not start.continues:
            raise StorageError(self.refusal(lines))
        return None

    def begin(self, start: RunStart, identity: dict[str, Any], total_steps: int) -> None:
        """Make room for a new run right before its first step, and record the run.

        Another run is moved to `<name>.previous`, with everything else in the folder. One that died
        before its first checkpoint is repeated in place, with the same results.

        Raises:
            StorageError: the folder cannot be moved or written.
        """
        is_same = not self._differences(read_run_record(self.path), identity)
        is_kept = start.continues and (start.checkpoint is not None or is_same)
        if not is_kept and saved_in(self.path):
            self._set_aside()
        record = names.RunRecord(
            id=start.run_id,
            since=_now(),
            identity=identity,
            total_steps=total_steps,
            finished=None,
        )
        write_json(self.path / names.RECORD, record)

    def make_room(self) -> None:
        """Make room for the folders of stages, which follow the same rules one by one.

        Raises:
            StorageError: the folder holds a run without stages, or cannot be moved.
        """
        if self.overwrite and self.resume is None and saved_in(self.path):
            self._set_aside()
        elif read_run_record(self.path) is not None:
            raise StorageError(self.refusal())

    def _set_aside(self) -> None:
        self._check_movable()
        previous = set_aside(self.path, is_only_a_run)
        logger.info("%s: the earlier run was moved to %s", self.path, previous.name)
        # The lock has moved along; the new folder needs its own.
        self._locks.enter_context(only_run_in(self.path))

    def finish(self) -> None:
        """Record that the run is finished."""
        write_json(self.path / names.RECORD, {**(read_run_record(self.path) or {}), "finished": _now()})

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add to an error that ends the run what has been saved and how to resume.

        Raises:
            ResourceError, StorageError, TrainingError: the same error with `resume_advice` appended.
        """
        try:
            yield
        except (ResourceError, StorageError, TrainingError) as error:
            raise type(error)(f"{error}\n{self.resume_advice()}") from error

    def resume_advice(self) -> str:
        """Describe what is complete in the folder, and give the command that resumes from there."""
        record = read_run_record(self.path)
        checkpoint = newest_checkpoint(self.path, None if record is None else record["id"])
        models = [each for each in saved_in(self.path) if not each.name.startswith(names.CHECKPOINT)]
        whole = self._names([*([] if checkpoint is None else [checkpoint]), *models])
        summary = f"saved under {self.path}: {', '.join(whole) or 'nothing yet'}"
        if checkpoint is None:
            return f"{summary}; there is no checkpoint to continue from"
        return (
            f"{summary}; to continue from {checkpoint.name}, run it again with --resume auto (resume: auto)"
        )

    def _differences(self, record: names.RunRecord | None, identity: dict[str, Any]) -> list[str]:
        if record is None:
            return [f"{names.RECORD}, which would identify the run, is missing"]
        with wrap_read_errors(self.path / names.RECORD):
            return differences(record["identity"], identity)

    def _check_movable(self) -> None:
        """Check that nothing that this process needs is in the folder of the earlier run."""
        if (place := self._needed_inside()) is not None:
            raise StorageError(
                f"save_path: {self.path} holds an earlier run, which would be moved with everything in "
                f"the folder, but {place} is needed; move it, or give another save_path"
            )

    def _needed_inside(self) -> Path | None:
        """Return a file in the folder that the run reads, or the working directory; None without any."""
        folder = self.path.resolve()
        places = (*self.inputs, Path.cwd())
        return next((place for place in places if place.resolve().is_relative_to(folder)), None)

    def refusal(self, lines: Sequence[str] = ()) -> str:
        """Describe the run in the folder, the differences to this one, and the ways on."""
        record = read_run_record(self.path)
        is_finished = record is not None and record["finished"] is not None
        state = "a finished" if is_finished else "an earlier"
        since = "an unknown time" if record is None else record["since"]
        found = ", ".join(shortened(self._names(saved_in(self.path)), MOST_FOLDERS))
        ways = (
            f"Begin anew (overwrite: true), which moves it to {self.path.resolve().name}.previous, or give "
            "another save_path"
        )
        if not is_finished or newest_checkpoint(self.path) is not None:
            ways = f"Continue it (resume: auto). {ways}"
        held = f"save_path: {self.path} holds {state} run, started at {since} ({found}). {ways}"
        return "\n  ".join([held, *lines])

    def _names(self, folders: Sequence[Path]) -> list[str]:
        return [folder.relative_to(self.path).as_posix() for folder in folders]


def read_run_record(folder: Path) -> names.RunRecord | None:
    """Return the record of the last run in a folder; None if there is none, or it is damaged."""
    if not (folder / names.RECORD).is_file():
        return None
    try:
        return read_record(folder / names.RECORD, names.RunRecord)
    except StorageError as error:
        logger.warning("ignored: %s", error)
        return None


def saved_in(folder: Path) -> list[Path]:
    """Return the checkpoints, models and stages' weights in the folder of a run."""
    checkpoints = [path for _, path in sorted(numbered(folder, names.CHECKPOINT).items())]
    patterns = (names.BEST, names.LAST, f"{names.ON_THE_WAY}*")
    models = [path for pattern in patterns for path in sorted(folder.glob(f"*/{pattern}"))]
    whole = [folder / names.JOINT, folder / names.STAGE_WEIGHTS]
    found = [path for path in (*checkpoints, *models, *whole) if is_sealed(path)]
    for stage in sorted(folder.glob(f"{names.STAGES}/*")):
        found += saved_in(stage)
    return found


def result_in(folder: Path) -> TrainingResult:
    """Return the result of the run in a folder, from its history.

    Raises:
        StorageError: there is no history, or it is damaged.
    """
    events = read_events(folder / HISTORY_FILE)
    plan = next((event for event in events if isinstance(event, Planned)), Planned())
    planned = {name: task.expected_steps for name, task in plan.tasks.items()}
    drawn = next((event.steps for event in reversed(events) if isinstance(event, Drawn)), {})
    return result_of(events, {**dict.fromkeys(planned, 0), **drawn}, planned, seconds_of(events))


def is_only_a_run(folder: Path) -> bool:
    """Check whether everything in a folder is what a run, or a prediction or report of it, writes."""
    return all(_is_of_run(place) for place in folder.iterdir())


_SAVED = re.compile(
    rf"{names.CHECKPOINT}\d+|{names.BEST}|{names.LAST}|{re.escape(names.ON_THE_WAY)}\d+|{names.JOINT}|"
    rf"{names.STAGE_WEIGHTS}"
)
"""Names of the folders of checkpoints, models and weights."""

PAGES = ("report.html", "report_data.json", "curves.html")
"""Files that `palm report` and `palm plot` write into the folder of a run."""


def _is_of_run(place: Path) -> bool:
    if place.is_symlink():
        return False
    if place.is_file():
        of_run = (*names.RUN_FILES, names.LOCK, *PREDICTION_FILES, *PAGES)
        return place.name in of_run or place.name.endswith(SUFFIX) or place.name.startswith(".predictions.")
    if is_sealed(place):
        return _SAVED.fullmatch(place.name) is not None and not foreign_files(place)
    return place.name in names.LOGGER_FOLDERS or is_only_a_run(place)


def run_of(checkpoint: Path) -> str | None:
    """Return the id of the run that wrote a checkpoint; None if it cannot be read."""
    try:
        state = read_json(checkpoint / names.STATE)
    except StorageError:
        return None
    return state.get("run_id") if isinstance(state, dict) else None


def _new_id() -> str:
    return uuid.uuid4().hex


def _now() -> str:
    return datetime.now().astimezone().isoformat(" ", "seconds")
