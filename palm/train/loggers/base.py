"""The data for loggers: curves, settings as YAML, a table of results, and model cards."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from palm.core.io import wrap_write_errors
from palm.train.callbacks import Ended, Evaluated, Event, Logged, Saved, Started
from palm.train.loop import Step

ID = "run_id"
"""The file in the folder of a logger with the id of the run."""

MAX_LENGTH = 500
"""Maximum length of a parameter's value, the limit of older versions of MLflow."""


def curves_of(event: Event) -> dict[str, float]:
    """Return the points that an event adds to curves: name -> value, without values that are not finite."""
    points: dict[str, float] = {}
    if isinstance(event, Logged):
        names = ("loss", "mean_loss", "grad_norm")
        points = {f"{event.task}/{name}": getattr(event, name) for name in names}
        names = ("learning_rate", "rows_per_second", "tokens_per_second")
        points |= {f"run/{name}": getattr(event, name) for name in names}
    elif isinstance(event, Evaluated):
        for task, scores in event.scores.items():
            points |= {f"{task}/dev_{name}": value for name, value in scores.items()}
        points |= {f"{task}/dev_loss": value for task, value in event.dev_loss.items()}
    return {name: value for name, value in points.items() if math.isfinite(value)}


def step_of(event: Event) -> int:
    """Return the global step of an event."""
    if isinstance(event, Started):
        return event.training.step
    return event.number if isinstance(event, Step) else int(vars(event)["step"])


def settings_text(configuration: Mapping[str, Any]) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.safe_dump(dict(configuration), allow_unicode=True, sort_keys=False)


def parameters_of(configuration: Mapping[str, Any], place: str = "") -> dict[str, str]:
    """Return the settings of a resolved configuration by name, a task's as `task.name`."""
    found: dict[str, str] = {}
    for name, value in configuration.items():
        section = place if name in ("global", "tasks") else f"{place}{name}."
        if isinstance(value, Mapping):
            found |= parameters_of(value, section)
        else:
            found[f"{place}{name}"] = str(value)[:MAX_LENGTH]
    return found


class Logger(ABC):
    """Base class of loggers: callbacks that pass on points of curves, and a summary at the end.

    Args:
        name: the name of the logger.
        folder: the folder of the run; its data is in `<folder>/<name>`.

    Attributes:
        step: the global step of the last event.
        known: curve -> its last step before the run resumed; points up to it are not added again.
        best: task -> the step of its best evaluation, and its scores.
        cards: task -> the card of the model that was saved last.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.run_folder = folder
        self.folder = folder / name
        self.step = 0
        self.known: dict[str, int] = {}
        self.best: dict[str, tuple[int, Mapping[str, float]]] = {}
        self.cards: dict[str, Path] = {}

    def earlier_id(self) -> str | None:
        """Return the id under which the run was logged before it resumed; None for a new run."""
        file = self.folder / ID
        return file.read_text(encoding="utf-8") if self.step and file.is_file() else None

    def keep_id(self, run: str) -> None:
        """Store the id for a resumed run."""
        (self.folder / ID).write_text(run, encoding="utf-8")

    def __call__(self, event: Event) -> None:
        with wrap_write_errors(self.folder):
            self._record(event)

    def _record(self, event: Event) -> None:
        self.step = step_of(event)
        if isinstance(event, Started):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.start(event)
        elif isinstance(event, Evaluated):
            self.best |= {task: (event.step, event.scores[task]) for task in event.best}
        elif isinstance(event, Saved) and event.task is not None:
            self.cards[event.task] = event.path / "README.md"
        points = {
            name: value for name, value in curves_of(event).items() if self.step > self.known.get(name, -1)
        }
        if points:
            self.log(points)
        if isinstance(event, Ended):
            self.end(event)

    @abstractmethod
    def start(self, event: Started) -> None:
        """Start or resume a run, and store its settings."""

    @abstractmethod
    def log(self, points: Mapping[str, float]) -> None:
        """Add points to curves at `step`."""

    @abstractmethod
    def end(self, event: Ended) -> None:
        """Store the summary, and end the run."""

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield name and Markdown of the table of best scores and of the saved model cards."""
        if self.best:
            rows = [
                f"| {task} | {name} | {value:.4f} | {step} |"
                for task, (step, scores) in self.best.items()
                for name, value in scores.items()
            ]
            yield "results", "\n".join(["| task | metric | best | at step |", "|---|---|---|---|", *rows])
        for task, path in self.cards.items():
            if path.is_file():
                yield f"{task}_model_card", path.read_text(encoding="utf-8")
