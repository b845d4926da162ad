"""Curves, settings, table and model cards for trackio, and for wandb, whose interface it has."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from palm.core.files.door import make_folder
from palm.engine.training.events import Ended, Event, Started
from palm.engine.watching.trackers.curves import Summary, curves_of, step_of

OFFLINE = {
    "trackio": lambda folder: {"TRACKIO_DIR": str(folder)},
    "wandb": lambda folder: {"WANDB_DIR": str(folder), "WANDB_MODE": "offline"},
}
"""Environment variables that keep a run on this machine; those that are set already win."""


class Trackio:
    """One run of the project `palm`, or of that which the package's environment variables name.

    Args:
        package: trackio or wandb.
        folder: where its files go.
    """

    def __init__(self, package: str, folder: Path) -> None:
        self.folder = folder
        self.step = 0
        make_folder(folder)
        for name, value in OFFLINE[package](folder / package).items():
            os.environ.setdefault(name, value)
        self.package: Any = import_module(package)  # it reads the environment when it is imported
        self.project = os.environ.get(f"{package.upper()}_PROJECT", "palm")
        self.summary = Summary()
        self.known: dict[str, int] = {}

    def _known(self) -> dict[str, int]:
        """Curve -> its last step in the run that goes on; wandb refuses steps of the past itself."""
        if self.package.__name__ == "wandb":
            return {}
        found: dict[str, int] = {}
        for line in self.package.SQLiteStorage.get_logs(self.project, self.folder.resolve().name):
            found |= {name: max(found.get(name, -1), int(line["step"] or 0)) for name in line}
        return found

    def __call__(self, event: Event) -> None:
        self.step = step_of(event)
        if isinstance(event, Started):
            self.package.init(
                project=self.project,
                name=self.folder.resolve().name,
                config=dict(event.configuration),
                resume="allow" if self.step else "never",
            )
            self.known = self._known() if self.step else {}
        self.summary(event)
        points = curves_of(event, self.known)
        if points:
            self.package.log(points, step=self.step)
        if isinstance(event, Ended):
            for task, (step, scores) in self.summary.best.items():
                best = {f"best/{task}/{name}": value for name, value in scores.items()}
                self.package.log({**best, f"best/{task}/step": step}, step=self.step)
            self.package.finish()
