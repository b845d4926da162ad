"""Several runs on one page: a sortable table, curves on top of each other, and the result of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.config.settings import NO_RESULT, TaskSettings, marked
from palm.core.errors import StorageError
from palm.core.io import check_plain, read_object, wrap_read_errors
from palm.core.logging import shown_value
from palm.report import curves
from palm.report.charts import Chart, interval_chart, line_chart
from palm.report.curves import Curve, curve_of
from palm.report.rendering import rendered
from palm.report.run import Run, read_run
from palm.train.callbacks import HISTORY_FILE
from palm.train.verdict import verdict_of

COMPARISON = "compare.json"
SWEEP = "sweep.json"

MOST_NAMED = 3
"""Maximum values of settings in the name of a run."""

MOST_METRICS = 3
"""Number of metrics drawn for a task: its first ones."""

MOST_COLUMNS = 8
"""Maximum settings in which runs differ that the table shows."""


def is_grid(folder: Path) -> bool:
    """Check whether a folder is that of a comparison or of a sweep."""
    return (folder / COMPARISON).is_file() or (folder / SWEEP).is_file()


def page_of_several(folders: Sequence[Path]) -> str:
    """Return the page of runs, or of the runs of a comparison or sweep.

    Raises:
        StorageError: a folder has no history, or a comparison is of another version.
    """
    folder = folders[0]
    is_one = len(folders) == 1
    comparison = comparison_of(folder) if is_one else {}
    sweep = read_object(folder / SWEEP) if is_one and (folder / SWEEP).is_file() else {}
    if comparison or sweep:
        folders = _folders_of(folder, comparison, sweep)
    runs = [read_run(path) for path in folders]
    settings = [_settings(run) for run in runs]
    if sweep:
        points = {trial["run"]: trial["values"] for trial in sweep["trials"]}
        settings = [points[run.label] for run in runs]
    # The name of a way of a comparison says in what it differs.
    columns = [] if comparison else differing(settings)[:MOST_COLUMNS]
    names, groups = named(runs, settings, columns)
    return rendered(
        "several.html",
        folder=folder.resolve(),
        found=comparison,
        sweep=sweep,
        differences=list(_difference_charts(comparison)),
        rows=[
            (run, {task: verdict_of(task, run.history.best(task)) for task in run.history.tasks})
            for run in runs
        ],
        tasks=list(dict.fromkeys(task for run in runs for task in run.history.tasks)),
        columns=[(name, [shown_value(each.get(name, "default")) for each in settings]) for name in columns],
        charts=[line_chart(*each) for each in curves_of(runs, names, groups)],
    )


def _folders_of(folder: Path, comparison: Mapping[str, Any], sweep: Mapping[str, Any]) -> list[Path]:
    """Return the folders of the runs of a comparison or sweep, in its order."""
    names = [run for way in comparison.get("ways", ()) for run in way["runs"]]
    names += [trial["run"] for trial in sweep.get("trials", ())]
    places = (folder / "runs" / name / "out" for name in dict.fromkeys(names))
    return [place for place in places if (place / HISTORY_FILE).is_file()]


def comparison_of(folder: Path) -> dict[str, Any]:
    """Read the result of a comparison; empty if the folder has none.

    Raises:
        StorageError: it is damaged or of another version.
    """
    file = folder / COMPARISON
    if not file.exists():
        return {}
    check_plain(file)
    with wrap_read_errors(file):
        found = dict(read_object(file))
        if (found.get("format"), found.get("version")) != ("palm-comparison", 4):
            raise StorageError(f"{file} is not a comparison of this version of palm; run palm compare again")
    return found


def _difference_charts(found: Mapping[str, Any]) -> Iterator[Chart]:
    """Yield a chart for every unit, so that all tasks whose differences are in points have one scale."""
    units: dict[str, list[tuple[str, float, Sequence[float], Sequence[float]]]] = {}
    for each in found.get("answers", ()):
        against = each["against"].replace(f"alone-{each['target']}", "alone")
        name, d = f"{each['target']}: {each['way']} − {against}", each["difference"]
        row = (name, d["mean"], (d["low"], d["high"]), d["per_seed"])
        units.setdefault(each["unit"].split()[0], []).append(row)
    note = "Above 0, the first is better. Lines are 95 % intervals of the mean, orange marks single seeds."
    for unit, rows in units.items():
        yield interval_chart("Differences", unit, rows, "seed", note)


def named(
    runs: Sequence[Run], settings: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Name runs after their folders and their values of the first columns.

    Returns:
        The names, and for each the name of the first run that differs only in its seed.
    """
    names = []
    for run, own in zip(runs, settings, strict=True):
        values = ", ".join(shown_value(own.get(name, "default")) for name in columns[:MOST_NAMED])
        names.append(f"{run.label}: {values}" if values else run.label)
    # Runs of programs without settings are not known to be equal.
    keys = [json.dumps(own or name, default=str) for own, name in zip(settings, names, strict=True)]
    return names, [names[keys.index(key)].partition("-seed")[0] for key in keys]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that are not the same in all runs."""
    found = []
    for name in dict.fromkeys(name for each in settings for name in each):
        # Settings of a task that a run does not have are no difference.
        known = [each for each in settings if name in each or not name.startswith("task ")]
        if len({json.dumps(each.get(name), default=str) for each in known}) > 1:
            found.append(name)
    return found


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings on which the result of a run depends, without its seed."""
    return {
        f"{title}.{each.name}" if title.startswith("task ") else each.name: each.value
        for title, values in run.sections.items()
        for each in values
        if each.name not in {*marked(NO_RESULT), *marked(NO_RESULT, TaskSettings), "random_seed"}
    }


def curves_of(
    runs: Sequence[Run], names: Sequence[str], groups: Sequence[str]
) -> Iterator[tuple[str, str, list[Curve]]]:
    """Yield title, unit and curves of the charts of every task: its loss, then its first metrics."""
    histories = [run.history for run in runs]
    several = list(zip(names, groups, histories, strict=True))
    for task in dict.fromkeys(task for each in histories for task in each.tasks):
        losses = [curve_of(name, curves.mean_losses(each, task), group) for name, group, each in several]
        dev = [
            curve_of(f"{name}, dev", curves.dev_losses(each, task), group, is_dashed=True)
            for name, group, each in several
        ]
        yield f"{task}: loss", "loss", [*losses, *dev]
        metrics = dict.fromkeys(name for each in histories for name in curves.metric_names(each, task))
        for metric in [*metrics][:MOST_METRICS]:
            found = [
                curve_of(name, curves.scores(each, task, metric), group) for name, group, each in several
            ]
            yield f"{task}: {metric}", metric, found
