"""Loggers, which store the curves, settings and results of many runs; each is a callback."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palm.config import yaml_text
from palm.core.component import unknown
from palm.core.io import wrap_write_errors
from palm.train.callbacks import Ended, Evaluated, Event, Logged, Started
from palm.train.loop import Step

ID = "run_id"
"""The file in the folder of a logger with the id of the run."""


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


class Logger(ABC):
    """Base class of loggers: callbacks that pass on points of curves.

    Args:
        name: the name of the logger.
        folder: the folder of the run; its data is in `<folder>/<name>`.

    Attributes:
        step: the global step of the last event.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.run_name = folder.resolve().name
        self.folder = folder / name
        self.step = 0

    def __call__(self, event: Event) -> None:
        with wrap_write_errors(self.folder):
            self._record(event)

    def _record(self, event: Event) -> None:
        if isinstance(event, Started):
            self.step = event.training.step
            self.folder.mkdir(parents=True, exist_ok=True)
            self.start(event)
            return
        self.step = event.number if isinstance(event, Step) else vars(event)["step"]
        if points := curves_of(event):
            self.log(points)
        if isinstance(event, Ended):
            self.end()

    @abstractmethod
    def start(self, event: Started) -> None:
        """Start or resume a run, and store its settings."""

    @abstractmethod
    def log(self, points: Mapping[str, float]) -> None:
        """Add points to curves at `step`."""

    @abstractmethod
    def end(self) -> None:
        """End the run."""


class TensorBoard(Logger):
    """A logger that writes event files into `<folder>/tensorboard`."""

    def start(self, event: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run removes the points after its checkpoint.
        purged = {"purge_step": self.step + 1} if self.step else {}
        self.writer = SummaryWriter(str(self.folder), **purged)
        text = yaml_text(event.training.config.to_dict()).replace("\n", "\n    ")
        self.writer.add_text("configuration", f"    {text}", self.step)

    def log(self, points: Mapping[str, float]) -> None:
        for name, value in points.items():
            self.writer.add_scalar(name, value, self.step)

    def end(self) -> None:
        self.writer.close()


class Wandb(Logger):
    """A run in the project `palm`, or in the one that WANDB_PROJECT names; without a login, it is offline."""

    def start(self, event: Started) -> None:
        os.environ.setdefault("WANDB_DIR", str(self.folder))
        self.package: Any = import_module("wandb")
        if self.package.api.api_key is None:
            os.environ.setdefault("WANDB_MODE", "offline")
        file = self.folder / ID
        run = self.package.init(
            project=os.environ.get("WANDB_PROJECT", "palm"),
            name=self.run_name,
            config=dict(event.training.config.to_dict()),
            # A resumed run goes on under its id; wandb itself rejects steps that it has.
            id=file.read_text(encoding="utf-8") if self.step and file.is_file() else None,
            resume="allow",
        )
        file.write_text(run.id, encoding="utf-8")

    def log(self, points: Mapping[str, float]) -> None:
        self.package.log(points, step=self.step)

    def end(self) -> None:
        self.package.finish()


LOGGERS: dict[str, tuple[type[Logger], str]] = {
    "tensorboard": (TensorBoard, "pip install 'palm-torch[tensorboard]'"),
    "wandb": (Wandb, "pip install wandb"),
}
"""Name of the logger and its package -> its class, and the command that installs the package."""


def logger_problems(names: Sequence[str]) -> list[str]:
    """List unknown loggers, and those whose packages are not installed."""
    found = []
    for name in names:
        if name not in LOGGERS:
            found.append(unknown("logger", name, LOGGERS))
        elif find_spec(name) is None:
            found.append(f"the logger {name!r} needs a package that is not installed: {LOGGERS[name][1]}")
    return found


def loggers_of(names: Sequence[str], folder: Path) -> list[Logger]:
    """Return loggers that store data in a folder, unless their own environment variables name another."""
    return [LOGGERS[name][0](name, folder) for name in names]
