"""Loggers, which store curves, settings and tables of many runs; each is a callback."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from palm.core.component import unknown
from palm.core.errors import ConfigError
from palm.train.loggers.base import Logger

LOGGERS = {
    "tensorboard": ("tensorboard:TensorBoard", "pip install 'palm-torch[tensorboard]'"),
    "trackio": ("trackio:Trackio", "pip install 'palm-torch[trackio]'"),
    "wandb": ("trackio:Wandb", "pip install wandb"),
    "mlflow": ("mlflow:MLflow", "pip install 'palm-torch[mlflow]'"),
}
"""Name of the logger and its package -> module and class, and the command that installs the package."""


def logger_problems(names: Sequence[str]) -> list[str]:
    """List unknown loggers, and those whose packages are not installed."""
    found = []
    for name in names:
        if name not in LOGGERS:
            found.append(unknown("logger", name, LOGGERS))
        elif find_spec(name) is None:
            found.append(f"the logger {name!r} needs a package that is not installed: {LOGGERS[name][1]}")
    return found


def loggers_of(names: Sequence[str], folder: Path | None) -> list[Logger]:
    """Return loggers that store data in a folder, unless their own environment variables name another.

    Raises:
        ConfigError: a logger is unknown, a package is missing, or there is no folder.
    """
    if problems := logger_problems(names):
        raise ConfigError([f"loggers: {line}" for line in problems])
    found: list[Logger] = []
    for name in names:
        if folder is None:
            raise ConfigError("loggers need a folder; call set_saver(save_path, save_steps) first")
        module, _, class_name = LOGGERS[name][0].partition(":")
        found.append(getattr(import_module(f"{__name__}.{module}"), class_name)(name, folder))
    return found
