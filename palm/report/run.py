"""A run's folder: its history, its configuration with the origin of every value, and its saved models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palm.config.files import ORIGIN, Lines, guessed, read_yaml
from palm.core.cache import explain_limits
from palm.core.errors import StorageError
from palm.core.io import check_plain, is_sealed, numbered, stays_inside, verified_object, wrap_read_errors
from palm.report.history import History, read_history
from palm.train.model_paths import (
    CONFIGURATION,
    DESCRIPTION,
    RECIPE,
    description_of,
    models_of,
    name_problem,
)


@dataclass(frozen=True)
class Value:
    """One setting as the run resolved it.

    Args:
        name: of the setting.
        value: the resolved value.
        origin: the file and line, or the argument, that set it; empty if that was not recorded.
    """

    name: str
    value: Any
    origin: str = ""


CHECKPOINT = "last checkpoint's"
"""The kind of a model that is only in a checkpoint."""


@dataclass(frozen=True)
class Model:
    """A model that a run saved.

    Args:
        task: its task.
        kind: `best`, `last`, `joint`, `after step N`, or `last checkpoint's`.
        folder: where it is saved.
    """

    task: str
    kind: str
    folder: Path


@dataclass(frozen=True)
class Run:
    """A run's folder.

    Args:
        folder: its `save_path`.
        history: its events.
        sections: `global`, the tasks and `backbone` -> their resolved settings; empty if not recorded.
        models: the saved models, for each task the best first.
        checkpoints: their global steps.
        is_configured: True if a configuration made the run and can repeat it, False if a program did.
    """

    folder: Path
    history: History
    sections: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    models: Sequence[Model] = ()
    checkpoints: Sequence[int] = ()
    is_configured: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def label(self) -> str:
        """Its name among others; the runs of a grid are all called `out`."""
        folder = self.folder.resolve()
        return folder.parent.name if folder.parent.parent.name == "runs" else folder.name

    @property
    def versions(self) -> dict[str, str]:
        """The versions of palm and of the libraries that made the run, as far as they were recorded."""
        of_model: Mapping[str, Any] = {}
        with suppress(StorageError):  # a run that goes on has just replaced it
            of_model = training_of(self.models[0]).get("versions", {}) if self.models else {}
        return {
            "palm": "unknown",
            **of_model,
            **({"palm": start} if (start := self.history.start.palm) else {}),
        }

    @property
    def can_resume(self) -> bool:
        """Whether its configuration continues it from a checkpoint."""
        is_finished = self.history.end is not None and self.history.end.reason == "finished"
        return self.is_configured and bool(self.checkpoints) and not is_finished

    def setting(self, task: str, name: str) -> Any:
        """Return the value of a setting for a task; None if it has its default."""
        everything = {each.name: each.value for each in self.sections.get("global", ())}
        own = {each.name: each.value for each in self.sections.get(f"task {task}", ())}
        return everything.get(f"{task}.{name}", everything.get(name, own.get(name)))

    def model(self, task: str) -> Model | None:
        """Return the best model of a task, or else its last."""
        return next((model for model in self.models if model.task == task), None)

    def source(self, task: str) -> Model | None:
        """Return the model that predicts a task's dev data; an auxiliary's is in the last checkpoint."""
        model = self.model(task)
        if model is not None or not self.checkpoints:
            return model
        path = self.folder / f"step_{self.checkpoints[-1]}"
        return Model(task, CHECKPOINT, path) if is_sealed(path) and stays_inside(self.folder, path) else None


def training_of(model: Model) -> Mapping[str, Any]:
    """Return what a model or a checkpoint recorded about its training; empty if nothing.

    Raises:
        StorageError: the folder is damaged, or is being replaced.
    """
    verified_object(model.folder, DESCRIPTION)
    with wrap_read_errors(model.folder / DESCRIPTION):
        return description_of(model.folder)["tasks"].get(model.task, {}).get("training") or {}


@explain_limits()
def read_run(folder: str | Path) -> Run:
    """Read the folder of a run; weights are not loaded.

    Raises:
        StorageError: the folder has no history.
        ConfigError: its configuration is not YAML.
    """
    folder = Path(folder)
    history = read_history(folder)
    if not folder.is_dir():
        raise StorageError(f"{folder} is a file; name the folder of the run, its save_path")
    tasks = [task for task in history.tasks if name_problem(task) is None]
    models = [Model(task, kind, path) for task in tasks for kind, path in models_of(folder, task)]
    file = folder / CONFIGURATION
    is_configured = file.is_file()
    sections = _sections(file if is_configured else folder / RECIPE)
    checkpoints = sorted(numbered(folder, "step_"))
    return Run(folder, history, sections, models, checkpoints, is_configured)


def _sections(file: Path) -> dict[str, list[Value]]:
    """Return the sections of a resolved configuration; the origin of a value is the comment after it."""
    check_plain(file)
    if not file.is_file():
        return {}
    with wrap_read_errors(file):
        found = read_yaml(file, [])
        lines = file.read_text(encoding="utf-8").splitlines()
        origins = [line.rpartition(ORIGIN)[2] if ORIGIN in line else "" for line in lines]
        tasks = {f"task {name}": settings for name, settings in (found.get("tasks") or {}).items()}
    sections = {"global": found.get("global"), **tasks, "backbone": found.get("backbone")}
    return {
        title: [
            Value(name, guessed(value), origins[settings.lines[name] - 1]) for name, value in settings.items()
        ]
        for title, settings in sections.items()
        if isinstance(settings, Lines)
    }
