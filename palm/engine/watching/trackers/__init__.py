"""Trackers: programs that keep curves, settings and tables of many runs; each is one observer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from palm.core.errors import ConfigError
from palm.core.registry import did_you_mean
from palm.engine.training.events import Observer

TRACKERS = {
    "tensorboard": ("palm.engine.watching.trackers.tensorboard", "pip install 'palm-torch[tensorboard]'"),
    "trackio": ("palm.engine.watching.trackers.trackio", "pip install 'palm-torch[trackio]'"),
    "wandb": ("palm.engine.watching.trackers.trackio", "pip install wandb"),
    "mlflow": ("palm.engine.watching.trackers.mlflow", "pip install 'palm-torch[mlflow]'"),
}
"""Name, which is that of the package too -> the module with its `observer`, and how to get the package."""


def tracker_problems(names: Sequence[str]) -> list[str]:
    """List unknown trackers, and those whose packages are not installed."""
    found = []
    for name in names:
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            found.append(f"no tracker is called {name!r}; known: {known}{did_you_mean(name, TRACKERS)}")
        elif find_spec(name) is None:
            found.append(f"the tracker {name!r} needs a package that is not installed: {TRACKERS[name][1]}")
    return found


def trackers_of(names: Sequence[str], folder: Path | None) -> list[Observer]:
    """The observers of trackers.

    Args:
        names: of `TRACKERS`.
        folder: where they keep what they get, unless their own environment variables say otherwise.

    Raises:
        ConfigError: an unknown one, one whose package is missing, or no folder.
    """
    if problems := tracker_problems(names):
        raise ConfigError([f"trackers: {line}" for line in problems])
    if names and folder is None:
        raise ConfigError(["trackers need a folder to write to; call set_saver(save_path, save_steps) first"])
    return [import_module(TRACKERS[name][0]).observer(name, folder) for name in names]
