"""The folder of a run: results of an earlier run, checkpoints of this one, and where it resumes."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from palm.core.differences import shortened
from palm.core.errors import ResourceError, StorageError, TrainingError
from palm.core.files.atomic_dir import check_target, move_foreign_aside, remove_directory, remove_stale
from palm.core.files.door import has_link
from palm.core.files.fs import check_replaceable, numbered, remove_written, write_json
from palm.core.files.manifest import MANIFEST, is_sealed
from palm.core.files.records import read_record
from palm.core.files.untrusted import read_json, wrap_read_errors
from palm.core.invocation import command_of_program
from palm.core.logging import logger
from palm.engine.inference.model_paths import BEST, BEST_OF_RUN, LAST
from palm.engine.run import run_names as names
from palm.engine.run.checkpoint import differences, newest_checkpoint, on_devices_of
from palm.engine.watching.history import HISTORY_FILE

MOST_FOLDERS = 3
"""Folders that a message names."""


@dataclass(frozen=True)
class RunStart:
    """The start of a run.

    Args:
        run_id: what its checkpoints are marked with.
        checkpoint: where it resumes; None for the beginning.
    """

    run_id: str
    checkpoint: Path | None


@dataclass(frozen=True)
class RunDirectory:
    """A run's `save_path`; rank 0 alone uses it, while it holds the lock (see `only_run_in`).

    Args:
        path: the folder.
        tasks: the names of all tasks of the run.
        targets: those that get models.
        resume: the setting: a checkpoint, or 'auto', or None.
        overwrite: the setting: what an earlier run of palm left may be replaced.
        inputs: files that the run reads; none may have a name under which it writes.
    """

    path: Path
    tasks: Sequence[str]
    targets: Sequence[str]
    resume: str | None = None
    overwrite: bool = False
    inputs: Sequence[Path] = ()

    def check(self, launch: str | None = None, goes_on: bool = False) -> RunStart:
        """Clear up after processes that died, refuse what would be refused hours later, choose the start.

        Args:
            launch: the id that the processes of one launch share (see `launch_id`).
            goes_on: the launcher has restarted this run; what is there may be from before.

        Raises:
            StorageError: files of others, or an earlier run's, stand where this run writes.
        """
        tasks = {*self.tasks, *self._earlier_tasks()}
        for name in sorted({*tasks, BEST_OF_RUN, names.STAGES, *names.FOLDERS}):
            if (self.path / name).is_symlink():
                raise StorageError(f"{self.path / name} is a link; remove it, or give another save_path")
        self._check_inputs(tasks)
        for name in names.FILES:
            if self.overwrite or goes_on or self.resume == "auto":
                move_foreign_aside(self.path / name)
            check_replaceable(self.path / name)
        self._clear(tasks)
        # Restarts of one launch find their own results, and are not to be refused for them.
        is_own = goes_on and self._record().get("launch") == launch
        if not is_own and (refused := self.refusal()) is not None:
            raise StorageError(refused)
        return self._start(is_own)

    def _clear(self, tasks: Collection[str]) -> None:
        """Remove what a run that died was writing; refuse places where files of others stand."""
        remove_stale(self.path, lambda name: name in tasks or names.RESERVED.fullmatch(name) is not None)
        for task in tasks:
            remove_stale(self.path / task, lambda name: names.MODELS.fullmatch(name) is not None)
        remove_stale(self.path / BEST_OF_RUN, lambda name: name in tasks)
        for task in self.targets:
            for place in (self.path / task / LAST, self.path / task / BEST, self.path / BEST_OF_RUN / task):
                check_target(place, overwrite=True)

    def refusal(self) -> str | None:
        """Return the reason why a run that may neither resume nor overwrite would be refused, or None.

        It only looks.
        """
        if is_sealed(self.path):
            return f"save_path: {self.path} is a saved model or a checkpoint; give a folder of the run's own"
        continues = self.resume == "auto" or self._is_here(self.resume)
        if continues or self.overwrite or not (found := self.results()):
            return None
        return self._refusal(found)

    def begin(self, start: RunStart, identity: dict[str, Any], launch: str | None = None) -> None:
        """Make room for a run that `check` lets start, and record its identity.

        Raises:
            StorageError: `resume: auto` found no checkpoint, but what another configuration trained.
        """
        if start.checkpoint is None:
            self._check_same(identity)
        if not self._is_here(start.checkpoint):
            # What an earlier run of palm left, nothing else; its checkpoints never take part again.
            if found := self.results():
                folders = ", ".join(shortened(found, MOST_FOLDERS))
                logger.info("starting anew; of an earlier run in %s, %s are replaced", self.path, folders)
            # Before the record: a process that dies in between leaves what still belongs to the earlier run.
            for folder in (*self._checkpoints(), *self._models()):
                remove_directory(folder)
            for name in (names.BAD_ROWS, names.STAGES_RECORD):
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
        """Within it, an error that ends the run also says what is whole, and how to go on.

        Raises:
            ResourceError, StorageError, TrainingError: with these words at their end.
        """
        try:
            yield
        except (ResourceError, StorageError, TrainingError) as error:
            raise type(error)(f"{error}\n{self.how_to_go_on()}") from error

    def how_to_go_on(self) -> str:
        """Describe what is whole in the folder, and the command that resumes from there."""
        checkpoint = newest_checkpoint(self.path, run_id=self._record().get("id"))
        whole = [*([] if checkpoint is None else [checkpoint.name]), *self._names(self._models())]
        summary = f"whole under {self.path}: {', '.join(whole) or 'nothing yet'}"
        if checkpoint is None:
            return f"{summary}; there is no checkpoint to go on from"
        command = command_of_program("--resume", "auto") or "the same once more with resume: auto"
        return f"{summary}; to go on from {checkpoint.name}: {command}"

    def _start(self, is_own_launch: bool) -> RunStart:
        if self.resume is None and not is_own_launch:
            return RunStart(_new_id(), None)
        if self.resume not in (None, "auto") and not is_own_launch:
            checkpoint = Path(str(self.resume))
            return RunStart((self._is_here(checkpoint) and run_of(checkpoint)) or _new_id(), checkpoint)
        # By the id, not by the place: a folder may hold checkpoints of a run that was replaced.
        run_id = self._run_here()
        newest = None if run_id is None else newest_checkpoint(self.path, run_id)
        if run_id is None or newest is None:
            tell = logger.warning if (self.path / HISTORY_FILE).exists() else logger.info
            tell("resume: no checkpoint of this run under %s; starting from the beginning", self.path)
            return RunStart(_new_id(), None)
        return RunStart(run_id, newest)

    def _run_here(self) -> str | None:
        """Return the id of the run in the folder; without its record, that of all checkpoints, if one."""
        if (recorded := self._record().get("id")) is not None:
            return str(recorded)
        runs = {run for folder in self._checkpoints() if (run := run_of(folder)) is not None}
        return runs.pop() if len(runs) == 1 else None

    def _check_same(self, identity: dict[str, Any]) -> None:
        """Refuse to replace what another configuration trained where this one was to go on with it."""
        found = self.results()
        if self.overwrite or not found or self.resume != "auto":
            return
        saved = self._record().get("identity")
        lines = [f"{names.RECORD} is missing, which would tell whose they are"]
        if isinstance(saved, dict):
            with wrap_read_errors(self.path / names.RECORD):
                lines = differences(on_devices_of(identity, saved)[0], identity)
        if lines:
            raise StorageError("\n  ".join([self._refusal(found), *lines]))

    # What is there

    def _record(self) -> dict[str, Any]:
        """Return the record of the last run in this folder; empty if there was none."""
        if not (self.path / names.RECORD).is_file():
            return {}
        try:
            return {**read_record(self.path / names.RECORD, names.RunRecord)}
        except StorageError as error:
            logger.warning("passed over: %s", error)
            return {}

    def _check_inputs(self, tasks: Collection[str]) -> None:
        folder = self.path.resolve()
        for file in self.inputs:
            place = file.resolve()
            # A file of the user's may lie in the folder, but not where models or records will be written.
            first, *rest = place.relative_to(folder).parts if folder in place.parents else ("",)
            if names.RESERVED.fullmatch(first) or (
                first in tasks and rest and names.MODELS.fullmatch(rest[0])
            ):
                raise StorageError(f"{file} is read, and the run writes there; give another save_path")

    def _is_here(self, checkpoint: str | Path | None) -> bool:
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
        """The folders of models of this run's tasks, of the earlier run's, and of all of its stages."""
        found = []
        for task in dict.fromkeys([*self.tasks, *self._earlier_tasks()]):
            folder = self.path / task
            places = sorted(folder.iterdir()) if folder.is_dir() else []
            found += [place for place in places if names.MODELS.fullmatch(place.name)]
            found.append(self.path / BEST_OF_RUN / task)
        found += [file.parent for file in sorted((self.path / names.STAGES).rglob(MANIFEST))]
        return [folder for folder in found if is_sealed(folder) and not has_link(folder, self.path)]

    def results(self) -> list[str]:
        """The checkpoints and models that are there, as paths below the folder."""
        return self._names([*self._checkpoints(), *self._models()])

    def _names(self, folders: Sequence[Path]) -> list[str]:
        return [folder.relative_to(self.path).as_posix() for folder in folders]

    def _refusal(self, found: Sequence[str]) -> str:
        since = self._record().get("since", "a time that is not known")
        folders = ", ".join(shortened(found, MOST_FOLDERS))
        return (
            f"save_path: {self.path} holds an earlier run, of {since} ({folders}). "
            "Go on with it (resume: auto), replace it (overwrite: true), or give another save_path"
        )


def run_of(checkpoint: Path) -> str | None:
    """Return the id of the run that wrote a checkpoint; None if that cannot be read."""
    try:
        state = read_json(checkpoint / names.STATE)
    except StorageError:
        return None
    return state.get("run_id") if isinstance(state, dict) else None


def _new_id() -> str:
    return uuid.uuid4().hex
