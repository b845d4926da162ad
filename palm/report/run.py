"""A run's folder: its history, its configuration and where every value came from, and its saved models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palm.config.files import ORIGIN, Lines, read_yaml
from palm.config.values import guessed
from palm.core.errors import StorageError
from palm.core.files.door import has_link
from palm.core.files.fs import numbered
from palm.core.files.manifest import is_sealed
from palm.core.files.records import check_plain, read_record
from palm.core.files.untrusted import wrap_read_errors
from palm.engine.inference.model_paths import models_of
from palm.engine.run.run_directory import CONFIGURATION, RECIPE, RECORD, RunRecord, name_problem
from palm.engine.training.recipe import flattened
from palm.report.history import History, read_history


@dataclass(frozen=True)
class Value:
    """One setting as the run resolved it.

    Args:
        name: of the setting.
        value: what it was.
        origin: the file and line, or the argument, that set it; empty where nobody wrote that down.
    """

    name: str
    value: Any
    origin: str = ""


CHECKPOINT = "last checkpoint's"
"""The kind of a model that only a checkpoint has."""


@dataclass(frozen=True)
class Model:
    """A model that a run saved.

    Args:
        task: whose.
        kind: `best`, `last`, `best of the run`, `after step N`, or `last checkpoint's`.
        folder: where.
    """

    task: str
    kind: str
    folder: Path


@dataclass(frozen=True)
class Run:
    """A run's folder.

    Args:
        folder: its `save_path`.
        history: what happened.
        sections: `global`, the tasks and `backbone` -> their resolved settings; empty where nothing tells.
        defaults: the same sections -> the values of settings that nobody set, as far as a result depends on
            them.
        models: those that it saved, per task the best first.
        checkpoints: their global steps.
        is_configured: whether a configuration made it, and can make it again; otherwise a program did.
    """

    folder: Path
    history: History
    sections: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    defaults: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    models: Sequence[Model] = ()
    checkpoints: Sequence[int] = ()
    is_configured: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    def setting(self, task: str, name: str) -> Any:
        """Return the value of a setting for a task; None if it has its default."""
        everything = {each.name: each.value for each in self.sections.get("global", ())}
        own = {each.name: each.value for each in self.sections.get(f"task {task}", ())}
        return everything.get(f"{task}.{name}", everything.get(name, own.get(name)))

    def model(self, task: str) -> Model | None:
        """The best model of a task, or else its last."""
        return next((model for model in self.models if model.task == task), None)

    def source(self, task: str) -> Model | None:
        """The model that predicts a task's dev data: of a task that only helps, in the last checkpoint."""
        model = self.model(task)
        if model is not None or not self.checkpoints:
            return model
        path = self.folder / f"step_{self.checkpoints[-1]}"
        return Model(task, CHECKPOINT, path) if is_sealed(path) and not has_link(path, self.folder) else None


def read_run(folder: str | Path) -> Run:
    """Read what a run left behind; weights are not loaded.

    Raises:
        StorageError: no history there.
        ConfigError: the configuration beside it is no YAML.
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
    return Run(folder, history, sections, _defaults(folder, sections), models, checkpoints, is_configured)


def _defaults(folder: Path, sections: Mapping[str, Sequence[Value]]) -> dict[str, list[Value]]:
    """Return what the run's record has of settings beyond those of its configuration."""
    file = folder / RECORD
    if not file.is_file() or not sections:
        return {}
    facts: dict[str, Any] = dict(read_record(file, RunRecord)["identity"])
    if "backbone" not in facts:  # of a run in stages, each of which has a record of its own
        return {}
    tasks = {f"task {name}": settings for name, settings in facts.pop("tasks").items()}
    parts = {"global": facts, **tasks, "backbone": facts.pop("backbone")["settings"]}
    given = {
        title: {each.name for each in (*sections.get(title, ()), *sections.get("global", ()))}
        for title in parts
    }
    return {
        title: [Value(name, each) for name, each in flattened(own).items() if name not in given[title]]
        for title, own in parts.items()
    }


def _sections(file: Path) -> dict[str, list[Value]]:
    """The sections of a resolved configuration, each value with the comment behind it."""
    check_plain(file)
    if not file.is_file():
        return {}
    with wrap_read_errors(file):
        found = read_yaml(file, [])
        lines = file.read_text(encoding="utf-8").splitlines()
        tasks = {f"task {name}": settings for name, settings in (found.get("tasks") or {}).items()}
    sections = {"global": found.get("global"), **tasks, "backbone": found.get("backbone")}
    return {
        title: [
            Value(name, guessed(value), lines[settings.lines[name] - 1].rpartition(ORIGIN)[2])
            if ORIGIN in lines[settings.lines[name] - 1]
            else Value(name, guessed(value))
            for name, value in settings.items()
        ]
        for title, settings in sections.items()
        if isinstance(settings, Lines)
    }
