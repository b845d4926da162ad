"""Experiment trackers, which store curves, settings and tables of many runs; each is one observer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from palm.core.errors import ConfigError
from palm.core.registry import unknown
from palm.train.events import Observer

TRACKERS = {
    "tensorboard": ("tensorboard:TensorBoard", "pip install 'palm-torch[tensorboard]'"),
    "trackio": ("trackio:Trackio", "pip install 'palm-torch[trackio]'"),
    "wandb": ("trackio:Trackio", "pip install wandb"),
    "mlflow": ("mlflow:MLflow", "pip install 'palm-torch[mlflow]'"),
}
"""Name of the tracker and its package -> module and class, and the command that installs the package."""


def tracker_problems(names: Sequence[str]) -> list[str]:
    """List unknown trackers, and those whose packages are not installed."""
    found = []
    for name in names:
        if name not in TRACKERS:
            found.append(unknown("tracker", name, TRACKERS))
        elif find_spec(name) is None:
            found.append(f"the tracker {name!r} needs a package that is not installed: {TRACKERS[name][1]}")
    return found


def trackers_of(names: Sequence[str], folder: Path | None, place: str = "trackers") -> list[Observer]:
    """Return the observers of trackers.

    Args:
        names: names from `TRACKERS`.
        folder: the folder in which they store data, unless their own environment variables name another.
        place: the place and name of the setting, for messages.

    Raises:
        ConfigError: a tracker is unknown, a package is missing, or there is no folder.
    """
    if problems := tracker_problems(names):
        raise ConfigError([f"{place}: {line}" for line in problems])
    if names and folder is None:
        raise ConfigError("trackers need a folder to write to; call set_saver(save_path, save_steps) first")
    trackers = []
    for name in names:
        module, _, class_name = TRACKERS[name][0].partition(":")
        trackers.append(getattr(import_module(f"{__name__}.{module}"), class_name)(name, folder))
    return trackers
