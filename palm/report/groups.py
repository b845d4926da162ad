"""Runs of one configuration but for the seed, taken together: the mean of their curves and its spread."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.report.curves import Curve
from palm.report.history import History
from palm.report.run import Run

SAME_EXPERIMENT = (
    "random_seed",
    "save_path",
    "pred_output_path",
    "data_cache",
    "use_data_cache",
    "resume",
    "print_every_n_steps",
    "keep_last_n",
    "save_every_n_steps",
    "save_infermodel_every_n_steps",
)
"""Settings in which runs may differ that are still the same experiment."""

GRID = 200
"""Steps at which curves are averaged: those of several runs seldom have points at the same ones."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs that belong together.

    Args:
        name: what tells them from the others.
        runs: one, or several with different seeds.
    """

    name: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class Band:
    """The mean of curves, and the standard deviation around it.

    Args:
        steps: global steps, float64[points].
        mean: at each of them, the same shape.
        spread: the same; zeros where there is one curve.
    """

    steps: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]


def grouped_runs(runs: Sequence[Run]) -> list[SeedGroup]:
    """Runs by what they were configured with; a run without a configuration stands alone.

    A group is called by the settings that the groups do not share, or by its folder.
    """
    members: dict[str, list[Run]] = {}
    for run in runs:
        settings = _settings(run)
        key = json.dumps(settings, sort_keys=True, default=str) if settings else str(run.folder.resolve())
        members.setdefault(key, []).append(run)
    names = _differing([_settings(group[0]) for group in members.values()])[:3]
    groups = []
    for group in members.values():
        settings = _settings(group[0])
        told = [f"{name.rpartition(' ')[2]} {settings.get(name, 'default')}" for name in names]
        title = ", ".join(told) if settings and told else group[0].name
        groups.append(SeedGroup(f"{title} ({len(group)} runs)" if len(group) > 1 else title, group))
    return groups


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of settings whose values differ."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({json.dumps(each.get(name), default=str) for each in settings}) > 1]


def band(group: SeedGroup, curve_of: Callable[[History], Curve | None]) -> Band | None:
    """The mean curve of a group's runs, between the first and the last step that all of them have.

    Args:
        group: the runs.
        curve_of: the curve of one of them, if it has it.
    """
    found = [curve for run in group.runs if (curve := curve_of(run.history)) is not None and curve.points]
    if not found:
        return None
    if len(found) == 1:
        steps, values = np.array(found[0].points, dtype=np.float64).T
        return Band(steps, values, np.zeros_like(values))
    first = max(curve.points[0][0] for curve in found)
    last = min(curve.points[-1][0] for curve in found)
    steps = np.linspace(first, max(first, last), GRID)
    columns = [np.array(curve.points, dtype=np.float64).T for curve in found]
    values = np.stack([np.interp(steps, known, numbers) for known, numbers in columns])
    return Band(steps, values.mean(0), values.std(0, ddof=1))


def _settings(run: Run) -> dict[str, Any]:
    return {
        f"{title}.{each.name}" if title.startswith("task ") else each.name: each.value
        for title, values in run.sections.items()
        for each in values
        if each.name not in SAME_EXPERIMENT
    }
