"""The folder of a grid: a folder for every run with its configuration, its job and its result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from palm.config import yaml_text
from palm.config.run import Document, result_settings
from palm.core.differences import changes, shortened
from palm.core.directories import remove_directory
from palm.core.errors import StorageError
from palm.core.io import make_folder, set_aside, write_json, write_text
from palm.core.logging import logger
from palm.core.records import read_record
from palm.train.folder import saved_in

CONFIGURATION = "config.yaml"
JOB = "job.json"
RESULT = "result.json"
LOG = "log.txt"
OUT = "out"
ROWS = "rows"

MOST_DIFFERENCES = 8
"""Maximum differences in a message."""


class Job(TypedDict):
    """The content of `job.json`: what a run is, in addition to its configuration.

    Attributes:
        about: everything that its result depends on.
        data: file -> checksum of the data.
        test: task -> the file with labels to score its model on.
        model: which model to score, `best` or `last`.
        point: the settings that a search tries in this run.
        keep_models: whether to keep its models and checkpoints.
    """

    about: Mapping[str, Any]
    data: Mapping[str, str]
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
        basis: everything that its result depends on, if that is not its configuration.
    """

    name: str
    settings: Document
    steps: int = 0
    test: Mapping[str, str] = field(default_factory=dict)
    model: str = "best"
    point: Mapping[str, Any] = field(default_factory=dict)
    basis: Mapping[str, Any] = field(default_factory=dict)

    def about(self) -> Mapping[str, Any]:
        """Return everything that its result depends on except the data, JSON-ready."""
        tested = {"test": self.test, "model": self.model} if self.test else {}
        return self.basis or {**result_settings(self.settings), **tested}


@dataclass(frozen=True)
class Grid:
    """A folder of runs.

    Args:
        path: the folder.
        data: file -> checksum of the data of all runs.
        keep_models: whether to keep the models and checkpoints of finished runs.
    """

    path: Path
    data: Mapping[str, str] = field(default_factory=dict)
    keep_models: bool = False

    def check(self, runs: Iterable[GridRun], overwrite: bool = False) -> None:
        """Compare runs with those of the same names that were begun before.

        Args:
            runs: the runs that are to be in the folder.
            overwrite: set other runs aside, as `runs.previous`.

        Raises:
            StorageError: a run was begun with other settings or data; with the differences.
        """
        lines = dict.fromkeys(line for run in runs for line in self._differences(run))
        if not lines:
            return
        if not overwrite:
            changed = "\n  ".join(shortened(list(lines), MOST_DIFFERENCES))
            raise StorageError(
                f"{self.path} was begun with other settings:\n  {changed}\n"
                "Put its runs aside (--overwrite), or give another folder (--output)"
            )
        logger.info("the earlier runs are kept as %s", set_aside(self.path / "runs"))

    def _differences(self, run: GridRun) -> list[str]:
        job = self.job(run.name)
        if job is None:
            return []
        data = {name: self.data.get(name, known) for name, known in job["data"].items()}
        found = [*changes(job["about"], run.about()), *changes(job["data"], data)]
        return [f"{'.'.join(path)} was {before!r} and is now {now!r}" for path, before, now in found]

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.path / "runs" / name

    def prepare(self, run: GridRun) -> Path:
        """Write the files that the process of a run reads, and return its folder."""
        folder = self.folder(run.name)
        make_folder(folder)
        own = {"save_path": str((folder / OUT).absolute()), "resume": "auto", "overwrite": False}
        settings = {**run.settings, "global": {**run.settings["global"], **own}}
        write_text(folder / CONFIGURATION, yaml_text(settings))
        job: Job = {
            "about": run.about(),
            "data": self.data,
            "test": run.test,
            "model": run.model,
            "point": run.point,
            "keep_models": self.keep_models,
        }
        write_json(folder / JOB, job)
        return folder

    def job(self, name: str) -> Job | None:
        """Return the job of a run that was begun; None if it was not."""
        file = self.folder(name) / JOB
        return read_record(file, Job) if file.exists() else None

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


def remove_models(folder: Path) -> None:
    """Remove the models and checkpoints that a run has written to its folder."""
    for saved in saved_in(folder / OUT):
        remove_directory(saved)
