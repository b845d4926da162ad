"""The folder of a grid: its description, and for every run a folder with its job and result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from palm.config import yaml_text
from palm.controller.document import Document, changed_data
from palm.core.differences import changes, shortened
from palm.core.errors import StorageError
from palm.core.files.atomic_dir import remove_directory, remove_stale
from palm.core.files.door import has_link, make_folder
from palm.core.files.fs import check_replaceable, remove_written, write_json, write_text
from palm.core.files.locking import locked
from palm.core.files.records import read_record
from palm.core.logging import logger
from palm.train.history import HISTORY_FILE
from palm.train.run_directory import RunDirectory
from palm.train.run_names import CONFIGURATION as RESOLVED
from palm.train.run_names import RECORD, STAGES_RECORD

DESCRIPTION = "grid.json"
CONFIGURATION = "config.yaml"
JOB = "job.json"
RESULT = "result.json"
LOG = "log.txt"
OUT = "out"
ROWS = "rows"

RUN_FILES = (HISTORY_FILE, RECORD, STAGES_RECORD, RESOLVED)
RUN_PATTERNS = [CONFIGURATION, JOB, RESULT, LOG, f"{ROWS}/*.jsonl"]
RUN_PATTERNS += [f"{OUT}/{place}{name}" for place in ("", "stages/*/") for name in RUN_FILES]
"""The files of a run's folder, except models and checkpoints, which have manifests."""

REMEDY = "Replace its runs (--overwrite), or give another folder (--output)"

MOST_DIFFERENCES = 8
"""Maximum differences in a message."""


class Description(TypedDict):
    """The content of `grid.json`."""

    kind: str
    about: Mapping[str, Any]


class Job(TypedDict):
    """The content of `job.json`: what the process of a run needs in addition to the configuration."""

    test: Mapping[str, str]
    model: str
    point: Mapping[str, Any]
    keep_models: bool


class Tested(TypedDict):
    """The scores of a task's model on its test file, the main metric first."""

    metric: str
    model: str
    scores: Mapping[str, float | None]


class Result(TypedDict):
    """The content of `result.json`.

    Attributes:
        state: `done` or `failed`.
        why: the reason for a failure; empty otherwise.
        dev: global step and score of every evaluation.
        seconds: duration of a finished run; 0 for a failed one.
        test: task -> its scores.
    """

    state: str
    why: str
    dev: Sequence[tuple[int, float]]
    steps: Mapping[str, int]
    seconds: float
    test: Mapping[str, Tested]


@dataclass(frozen=True)
class GridRun:
    """One run of a grid.

    Args:
        name: of its folder.
        settings: its configuration, without `save_path`.
        steps: planned steps, to estimate the remaining time; 0 if unknown.
        test: task -> a file with labels to score its model on after training.
        model: which model to score: `best`, if there is one, or `last`.
        point: the settings that a search tries in this run.
    """

    name: str
    settings: Document
    steps: int = 0
    test: Mapping[str, str] = field(default_factory=dict)
    model: str = "best"
    point: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A folder of runs.

    Args:
        path: the folder.
    """

    path: Path

    def open(
        self, kind: str, about: Mapping[str, Any], overwrite: bool = False, grows: Sequence[str] = ()
    ) -> bool:
        """Begin a grid, or resume the same one.

        Args:
            kind: the command that makes it, such as `compare`.
            about: everything that its runs depend on, JSON-ready.
            grows: sections of `about` that may gain or lose entries; common entries must be equal, and
                earlier ones are kept.
            overwrite: remove the runs of a grid with another description.

        Returns:
            True if a grid was begun, False if it was resumed.

        Raises:
            StorageError: the folder contains another grid, with the differences; or it cannot be written.
        """
        file = self.path / DESCRIPTION
        earlier = "grid"
        if file.is_file():
            saved = read_record(file, Description)
            earlier = saved["kind"]
            old = saved["about"]
            # A comparison may get more variants later. Its results stay valid if everything that is in both
            # descriptions is equal.
            about = {**about, **{name: {**old.get(name, {}), **about[name]} for name in grows}}
            kept = {name: {key: about[name][key] for key in old.get(name, {})} for name in grows}
            lines = [
                f"{'.'.join(path)} was {before!r} and is now {now!r}"
                for path, before, now in changes(old, {**about, **kept})
            ]
            if earlier != kind:
                lines = [f"it was made by palm {earlier}, not palm {kind}"]
            if not lines:
                write_json(file, {**saved, "about": about})
                return False
            if not overwrite:
                changed = "\n  ".join(shortened(lines, MOST_DIFFERENCES))
                raise StorageError(f"{self.path} was begun with other settings:\n  {changed}\n{REMEDY}")
        elif self.folders() and not overwrite:
            raise StorageError(f"{self.path} has runs but no {DESCRIPTION} with their settings. {REMEDY}")
        for folder in self.folders():
            clear(folder)
            # One that could not be removed would count as the result of the new run.
            check_replaceable(folder / RESULT)
            logger.info("removed the files of an earlier %s: %s", earlier, folder)
        make_folder(self.path / "runs")
        write_json(file, {"kind": kind, "about": about})
        return True

    def folder(self, name: str) -> Path:
        """Return the folder of a run.

        Raises:
            StorageError: its path contains a symbolic link.
        """
        folder = self.path / "runs" / name
        if has_link(folder / OUT, self.path):
            raise StorageError(
                f"the path {folder / OUT} contains a symbolic link; remove the link, or give another folder "
                "(--output)"
            )
        return folder

    def folders(self) -> list[Path]:
        """Return the folders of all runs that were begun."""
        found = (job.parent for job in (self.path / "runs").glob(f"*/{JOB}"))
        return sorted(folder for folder in found if not has_link(folder, self.path))

    def prepare(self, run: GridRun, keep_models: bool) -> Path:
        """Write the files that the process of a run reads, and return its folder."""
        folder = self.folder(run.name)
        make_folder(folder)
        own = {"save_path": str((folder / OUT).absolute()), "resume": "auto", "overwrite": False}
        settings = {**run.settings, "global": {**run.settings["global"], **own}}
        write_text(folder / CONFIGURATION, yaml_text(settings))
        job = {"test": run.test, "model": run.model, "point": run.point, "keep_models": keep_models}
        write_json(folder / JOB, job)
        return folder

    def job(self, name: str) -> Job | None:
        """Return the job of a run that was begun; None if it was not."""
        file = self.folder(name) / JOB
        return read_record(file, Job) if file.exists() else None

    def remove_unkept(self, name: str) -> None:
        """Remove the models of a run that was begun without `keep_models`."""
        if (job := self.job(name)) is not None and not job["keep_models"]:
            folder = self.folder(name)
            with worker_lock(folder):
                remove_models(folder)

    def changed_data(self) -> list[str]:
        """Return the data files that are no longer those that the grid was begun with.

        Raises:
            DataError: a file is missing or cannot be read.
        """
        file = self.path / DESCRIPTION
        return changed_data(read_record(file, Description)["about"].get("data", {})) if file.exists() else []

    def result(self, name: str) -> Result | None:
        """Return the result of a run; None until it has finished."""
        file = self.folder(name) / RESULT
        return read_record(file, Result) if file.exists() else None


def best_of(result: Result) -> tuple[int, float | None]:
    """Return the global step and the score of the best evaluation of a run."""
    if not result["dev"]:
        return 0, None
    # Of equal scores, the earliest costs least.
    step, score = max(result["dev"], key=lambda each: (each[1], -each[0]))
    return step, score


def word_of(value: Any) -> str:
    """Return a setting's value as a word of the command line."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


def worker_lock(folder: Path) -> AbstractContextManager[None]:
    """The lock of a run's folder, held by its process, which may outlive its parent to save."""
    return locked(folder / ".worker.lock", f"ending the run in {folder}")


def clear(folder: Path) -> None:
    """Remove everything that palm wrote to the folder of a run, except the lock file."""
    with worker_lock(folder):
        remove_models(folder)
        for pattern in RUN_PATTERNS:
            for file in folder.glob(pattern):
                if not has_link(file, folder):
                    remove_written(file)


def remove_models(folder: Path) -> None:
    """Remove the models and checkpoints of a run, finished or not; the caller holds `worker_lock`."""
    for place in (folder / OUT, *sorted((folder / OUT).rglob("*"))):
        remove_stale(place, lambda _: True)
    for saved in RunDirectory(folder / OUT, (), ()).folders():
        remove_directory(saved)
