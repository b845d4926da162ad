"""Groups of runs whose configurations differ only in the seed, and the mean of their curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palm.report.curves import Curve, Point
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
"""Settings in which runs of the same experiment may differ."""

GRID = 200
"""Number of steps at which curves are averaged; curves of several runs rarely share their steps."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one experiment.

    Args:
        name: what distinguishes them from other runs.
        runs: one, or several with different seeds.
    """

    name: str
    runs: Sequence[Run]


def grouped_runs(runs: Sequence[Run]) -> list[SeedGroup]:
    """Group runs by their configuration; a run without a configuration is its own group.

    A group is named after the settings in which the groups differ, or after its folder.
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
        parts = [f"{name.rpartition(' ')[2]} {settings.get(name, 'default')}" for name in names]
        title = ", ".join(parts) if settings and parts else group[0].name
        groups.append(SeedGroup(f"{title} ({len(group)} runs)" if len(group) > 1 else title, group))
    return groups


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of settings whose values differ."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({json.dumps(each.get(name), default=str) for each in settings}) > 1]


def mean_curve(group: SeedGroup, curve_of: Callable[[History], Curve]) -> Sequence[Point]:
    """Average the curves of a group's runs, between the first and the last step that all of them cover.

    Args:
        group: the runs.
        curve_of: returns the curve of a run; curves without points are ignored.
    """
    found = [points for run in group.runs if (points := curve_of(run.history).points)]
    if len(found) < 2:
        return found[0] if found else ()
    first = max(points[0][0] for points in found)
    last = min(points[-1][0] for points in found)
    steps = np.linspace(first, max(first, last), GRID)
    columns = [np.array(points, dtype=np.float64).T for points in found]
    mean = np.stack([np.interp(steps, known, numbers) for known, numbers in columns]).mean(0)
    return list(zip(steps.tolist(), mean.tolist(), strict=True))


def _settings(run: Run) -> dict[str, Any]:
    return {
        f"{title}.{each.name}" if title.startswith("task ") else each.name: each.value
        for title, values in run.sections.items()
        for each in values
        if each.name not in SAME_EXPERIMENT
    }
