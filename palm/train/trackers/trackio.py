"""The tracker for trackio and for wandb, which have the same interface: curves, settings and best scores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from palm.core.files.door import make_folder
from palm.train.events import Ended, Started
from palm.train.trackers.tracker import Tracker

OFFLINE = {
    "trackio": lambda folder: {"TRACKIO_DIR": str(folder)},
    "wandb": lambda folder: {"WANDB_DIR": str(folder), "WANDB_MODE": "offline"},
}
"""Environment variables that keep a run on this machine; variables that are already set take precedence."""


class Trackio(Tracker):
    """A run in the project `palm`, or in the one that the package's environment variable names.

    The tracker's name is that of the package: trackio or wandb.
    """

    def start(self, event: Started) -> None:
        make_folder(self.run_folder)
        for name, value in OFFLINE[self.name](self.folder).items():
            os.environ.setdefault(name, value)
        self.package: Any = import_module(self.name)  # it reads the environment on import
        project = os.environ.get(f"{self.name.upper()}_PROJECT", "palm")
        run = self.run_folder.resolve().name
        self.package.init(
            project=project,
            name=run,
            config=dict(event.configuration),
            resume="allow" if self.step else "never",
        )
        if self.step and self.name == "trackio":  # wandb itself rejects earlier steps
            for line in self.package.SQLiteStorage.get_logs(project, run):
                step = int(line["step"] or 0)
                self.known |= {name: max(self.known.get(name, -1), step) for name in line}

    def log(self, points: Mapping[str, float]) -> None:
        self.package.log(points, step=self.step)

    def end(self, event: Ended) -> None:  # noqa: ARG002
        for task, (step, scores) in self.best.items():
            best = {f"best/{task}/{name}": value for name, value in scores.items()}
            self.log({**best, f"best/{task}/step": step})
        self.package.finish()
