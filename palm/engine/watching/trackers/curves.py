"""Input of trackers: curves by name, settings as YAML, the table at the end, model cards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from palm.core.files.door import is_plain
from palm.engine.training.events import Evaluated, Event, Logged, Saved, Started
from palm.engine.training.loop import Step

MOST_LETTERS = 500
"""Of a parameter, as older versions of MLflow have it."""


def curves_of(event: Event, known: Mapping[str, int] = MappingProxyType({})) -> dict[str, float]:
    """The points that an event adds to curves, by name; what is not a number has no point.

    Args:
        event: of the run.
        known: curve -> its last step so far, of a run that goes on: points up to there are not added again.
    """
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
    return {
        name: value
        for name, value in points.items()
        if math.isfinite(value) and step_of(event) > known.get(name, -1)
    }


def step_of(event: Event) -> int:
    """The global step that an event belongs to."""
    if isinstance(event, Started):
        return event.training.step
    return event.number if isinstance(event, Step) else int(vars(event)["step"])


def settings_text(configuration: Mapping[str, Any]) -> str:
    """The resolved configuration as YAML."""
    return yaml.safe_dump(dict(configuration), allow_unicode=True, sort_keys=False)


def parameters_of(configuration: Mapping[str, Any], place: str = "") -> dict[str, str]:
    """Return the settings of a resolved configuration by name; those of a task as `task.name`."""
    found: dict[str, str] = {}
    for name, value in configuration.items():
        section = place if name in ("global", "tasks") else f"{place}{name}."
        if isinstance(value, Mapping):
            found |= parameters_of(value, section)
        else:
            found[f"{place}{name}"] = str(value)[:MOST_LETTERS]
    return found


class Summary:
    """Collects what belongs to the end of a run: its best scores and its models' cards."""

    def __init__(self) -> None:
        self.best: dict[str, tuple[int, Mapping[str, float]]] = {}
        self.cards: dict[str, Path] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.best |= {task: (event.step, event.scores[task]) for task in event.best}
        elif isinstance(event, Saved) and event.task is not None:
            self.cards[event.task] = event.path / "README.md"

    def table(self) -> str:
        """The best scores of every task, as Markdown."""
        rows = [
            f"| {task} | {name} | {value:.4f} | {step} |"
            for task, (step, scores) in self.best.items()
            for name, value in scores.items()
        ]
        return "\n".join(["| task | metric | best | at step |", "|---|---|---|---|", *rows])

    def texts(self) -> Iterator[tuple[str, str]]:
        """Name and text of the table and of the model cards that were written."""
        if self.best:
            yield "results", self.table()
        for task, path in self.cards.items():
            if is_plain(path):
                yield f"{task}_model_card", path.read_text(encoding="utf-8")
