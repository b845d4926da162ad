"""The loggers for trackio and for wandb, which have the same interface: curves, settings and best scores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from palm.train.callbacks import Ended, Started
from palm.train.loggers.base import Logger


class Trackio(Logger):
    """A run in the project `palm`, or in the one that TRACKIO_PROJECT names."""

    def start(self, event: Started) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(self.folder))  # it is read on import
        self.package: Any = import_module("trackio")
        project = os.environ.get("TRACKIO_PROJECT", "palm")
        name = self.run_folder.resolve().name
        resume = "allow" if self.step else "never"
        self.package.init(project=project, name=name, config=dict(event.configuration), resume=resume)
        for line in self.package.SQLiteStorage.get_logs(project, name) if self.step else ():
            step = int(line["step"] or 0)
            self.known |= {name: max(self.known.get(name, -1), step) for name in line}

    def log(self, points: Mapping[str, float]) -> None:
        self.package.log(points, step=self.step)

    def end(self, event: Ended) -> None:  # noqa: ARG002
        for task, (step, scores) in self.best.items():
            best = {f"best/{task}/{name}": value for name, value in scores.items()}
            self.log({**best, f"best/{task}/step": step})
        self.package.finish()


class Wandb(Trackio):
    """A run in the project `palm`, or in the one that WANDB_PROJECT names; without a login, it is offline."""

    def start(self, event: Started) -> None:
        os.environ.setdefault("WANDB_DIR", str(self.folder))
        self.package = import_module("wandb")
        if self.package.api.api_key is None:
            os.environ.setdefault("WANDB_MODE", "offline")
        run = self.package.init(
            project=os.environ.get("WANDB_PROJECT", "palm"),
            name=self.run_folder.resolve().name,
            config=dict(event.configuration),
            id=self.earlier_id(),  # wandb itself rejects steps that it has
            resume="allow",
        )
        self.keep_id(run.id)
