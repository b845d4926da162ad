"""The folder of a run: results of an earlier run, checkpoints of this run, and the point where it resumes."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from palm.core.differences import shortened
from palm.core.errors import ResourceError, StorageError, TrainingError
from palm.core.files.atomic_dir import check_target, move_foreign_aside, remove_directory, remove_stale
from palm.core.files.door import has_link
from palm.core.files.fs import check_replaceable, is_written, numbered, remove_written, write_json
from palm.core.files.manifest import is_sealed
from palm.core.files.records import read_record
from palm.core.files.untrusted import read_json, wrap_read_errors
from palm.core.invocation import command_of_program
from palm.core.logging import logger
from palm.train import run_names as names
from palm.train.checkpoint import differences, newest_checkpoint, on_devices_of
from palm.train.history import HISTORY_FILE
from palm.train.model_paths import BEST, BEST_OF_RUN, LAST, models_of

MOST_FOLDERS = 3
"""Maximum number of folders that a message names."""


@dataclass(frozen=True)
class RunStart:
    """The starting point of a run.

    Args:
        run_id: the id stored in its checkpoints.
        checkpoint: the checkpoint to resume from; None to start from the beginning.
    """

    run_id: str
    checkpoint: Path | None


@dataclass(frozen=True)
class RunDirectory:
    """A run's `save_path`, used only by rank 0 while it holds the lock (see `only_run_in`).

    Args:
        path: the folder.
        tasks: the names of all tasks of the run.
        targets: names of the tasks whose models are saved.
        resume: the setting: a checkpoint, 'auto' or None.
        overwrite: the setting: results of an earlier run of palm may be replaced.
        inputs: files that the run reads; it must not write to any of them.
    """

    path: Path
    tasks: Sequence[str]
    targets: Sequence[str]
    resume: str | None = None
    overwrite: bool = False
    inputs: Sequence[Path] = ()

    def check(self, launch: str | None = None, restarted: bool = False) -> RunStart:
        """Remove leftovers of dead processes, refuse now what would fail hours later, and choose the start.

        Args:
            launch: the id that the processes of one launch share (see `launch_id`).
            restarted: the launcher has restarted this run, so existing results may be its own.

        Raises:
            StorageError: foreign files, or those of an earlier run, are where this run writes.
        """
        tasks = {*self.tasks, *self._earlier_tasks()}
        for name in sorted({*tasks, BEST_OF_RUN, names.STAGES, *names.FOLDERS}):
            if (self.path / name).is_symlink():
                raise StorageError(f"{self.path / name} is a link; remove it, or give another save_path")
        self._check_inputs(tasks)
        for name in names.FILES:
            if self.overwrite or restarted or self.resume == "auto":
                move_foreign_aside(self.path / name)
            check_replaceable(self.path / name)
        self._clear(tasks)
        # A restart within one launch finds its own results and must not be refused because of them.
        is_own = restarted and self._record().get("launch") == launch
        if not is_own and (refused := self.refusal()) is not None:
            raise StorageError(refused)
        return self._start(is_own)

    def _clear(self, tasks: Collection[str]) -> None:
        """Remove unfinished folders of a run that died; refuse to write over foreign files."""
        remove_stale(self.path, lambda name: name in tasks or names.RESERVED.fullmatch(name) is not None)
        for task in tasks:
            remove_stale(self.path / task, lambda name: names.MODELS.fullmatch(name) is not None)
        remove_stale(self.path / BEST_OF_RUN, lambda name: name in tasks)
        for task in self.targets:
            for place in (self.path / task / LAST, self.path / task / BEST, self.path / BEST_OF_RUN / task):
                check_target(place, overwrite=True)

    def refusal(self) -> str | None:
        """Return the reason why a run that may neither resume nor overwrite is refused, or None.

        Changes nothing on disk.
        """
        if is_sealed(self.path):
            return f"save_path: {self.path} is a saved model or a checkpoint; give another folder"
        continues = self.resume == "auto" or self._is_inside(self.resume)
        if continues or self.overwrite or not (found := self.results()):
            return None
        return self._refusal(found)

    def begin(self, start: RunStart, identity: dict[str, Any], launch: str | None = None) -> None:
        """Remove earlier results before a run that `check` has accepted, and record the run's identity.

        Raises:
            StorageError: `resume: auto` found no checkpoint, only results of another configuration.
        """
        if start.checkpoint is None:
            self._check_same(identity)
        if not self._is_inside(start.checkpoint):
            # Only results of an earlier run of palm are removed; its checkpoints are never used again.
            files = (names.BAD_ROWS, names.STAGES_RECORD)
            if found := [*self.results(), *(name for name in files if is_written(self.path / name))]:
                named = ", ".join(found)
                logger.info("%s: starting from scratch; replacing %s of an earlier run", self.path, named)
            # Before the record is written: if the process dies in between, the rest belongs to the old run.
            for folder in self.folders():
                remove_directory(folder)
                move_foreign_aside(folder)  # with files of the user's, it must not count as this run's
            for name in files:
                remove_written(self.path / name)
        record = {
            "id": start.run_id,
            "since": datetime.now().astimezone().isoformat(" ", "seconds"),
            "launch": launch,
            "identity": identity,
        }
        write_json(self.path / names.RECORD, record)

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
        checkpoint = newest_checkpoint(self.path, run_id=self._record().get("id"))
        whole = [*([] if checkpoint is None else [checkpoint.name]), *self._names(self._models())]
        summary = f"saved under {self.path}: {', '.join(whole) or 'nothing yet'}"
        if checkpoint is None:
            return f"{summary}; there is no checkpoint to continue from"
        command = command_of_program("--resume", "auto") or "run the same program with resume: auto"
        return f"{summary}; to continue from {checkpoint.name}: {command}"

    def _start(self, is_own_launch: bool) -> RunStart:
        if self.resume is None and not is_own_launch:
            return RunStart(_new_id(), None)
        if self.resume not in (None, "auto") and not is_own_launch:
            checkpoint = Path(str(self.resume))
            return RunStart((self._is_inside(checkpoint) and run_of(checkpoint)) or _new_id(), checkpoint)
        # Checkpoints are selected by run id: the folder may still hold those of a run that was replaced.
        run_id = self._recorded_run_id()
        newest = None if run_id is None else newest_checkpoint(self.path, run_id)
        if run_id is None or newest is None:
            log = logger.warning if (self.path / HISTORY_FILE).exists() else logger.info
            log("resume: no checkpoint of this run under %s; starting from the beginning", self.path)
            return RunStart(_new_id(), None)
        return RunStart(run_id, newest)

    def _recorded_run_id(self) -> str | None:
        """Return the id of the run in the folder; without a record, the id that all checkpoints share."""
        if (recorded := self._record().get("id")) is not None:
            return str(recorded)
        runs = {run for folder in self._checkpoints() if (run := run_of(folder)) is not None}
        return runs.pop() if len(runs) == 1 else None

    def _check_same(self, identity: dict[str, Any]) -> None:
        """Refuse to replace results of another configuration that `resume: auto` was meant to continue."""
        found = self.results()
        if self.overwrite or not found or self.resume != "auto":
            return
        saved = self._record().get("identity")
        lines = [f"{names.RECORD}, which would identify the run, is missing"]
        if isinstance(saved, dict):
            with wrap_read_errors(self.path / names.RECORD):
                lines = differences(on_devices_of(identity, saved)[0], identity)
        if lines:
            raise StorageError("\n  ".join([self._refusal(found), *lines]))

    # Contents of the folder

    def _record(self) -> dict[str, Any]:
        """Return the record of the last run in this folder; empty if there is none."""
        if not (self.path / names.RECORD).is_file():
            return {}
        try:
            return {**read_record(self.path / names.RECORD, names.RunRecord)}
        except StorageError as error:
            logger.warning("ignored: %s", error)
            return {}

    def _check_inputs(self, tasks: Collection[str]) -> None:
        folder = self.path.resolve()
        for file in self.inputs:
            place = file.resolve()
            # A user's file may be in the folder, but not where models or records will be written.
            first, *rest = place.relative_to(folder).parts if folder in place.parents else ("",)
            if names.RESERVED.fullmatch(first) or (
                first in tasks and rest and names.MODELS.fullmatch(rest[0])
            ):
                raise StorageError(f"{file} is an input that the run would overwrite; give another save_path")

    def _is_inside(self, checkpoint: str | Path | None) -> bool:
        return checkpoint is not None and Path(checkpoint).resolve().parent == self.path.resolve()

    def _earlier_tasks(self) -> list[str]:
        identity = self._record().get("identity")
        tasks = identity["tasks"] if identity else {}
        return [name for name in tasks if names.name_problem(name) is None]

    def _checkpoints(self) -> list[Path]:
        return [
            folder for _, folder in sorted(numbered(self.path, names.CHECKPOINT).items()) if is_sealed(folder)
        ]

    def _models(self) -> list[Path]:
        """Return the model folders of this run's tasks, of the earlier run's tasks, and of stages."""
        tasks = list(dict.fromkeys([*self.tasks, *self._earlier_tasks()]))
        found = [path for task in tasks for _, path in models_of(self.path, task)]
        # Only known names: a user may have copied a model into the folder, which has a manifest, too.
        for stage in sorted((self.path / names.STAGES).glob(names.STAGE_FOLDERS)):
            if not has_link(stage, self.path):
                weights = stage / names.STAGE_WEIGHTS
                found += replace(self, path=stage, tasks=tasks).folders()
                found += [weights] if is_sealed(weights) and not weights.is_symlink() else []
        return found

    def folders(self) -> list[Path]:
        """Return the existing folders of checkpoints and models; links do not count."""
        return [*self._checkpoints(), *self._models()]

    def results(self) -> list[str]:
        """Return the existing checkpoints and models, as paths relative to the folder."""
        return self._names(self.folders())

    def _names(self, folders: Sequence[Path]) -> list[str]:
        return [folder.relative_to(self.path).as_posix() for folder in folders]

    def _refusal(self, found: Sequence[str]) -> str:
        since = self._record().get("since", "an unknown time")
        folders = ", ".join(shortened(found, MOST_FOLDERS))
        return (
            f"save_path: {self.path} holds an earlier run, started at {since} ({folders}). "
            "Continue it (resume: auto), replace it (overwrite: true), or give another save_path"
        )


def run_of(checkpoint: Path) -> str | None:
    """Return the id of the run that wrote a checkpoint; None if it cannot be read."""
    try:
        state = read_json(checkpoint / names.STATE)
    except StorageError:
        return None
    return state.get("run_id") if isinstance(state, dict) else None


def _new_id() -> str:
    return uuid.uuid4().hex
