"""Plots that compare loss and scores of runs: a page of charts, or text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.config.settings import NO_RESULT, TaskSettings, marked
from palm.core.component import path_problems, raise_any
from palm.core.errors import PalmError
from palm.core.io import write_text
from palm.core.logging import printable
from palm.report.charts import Chart, labels, task_charts
from palm.report.page import environment
from palm.report.run import Run, read_run

MOST_NAMED = 3
"""Maximum settings in the name of a run."""

PLOT_FILE = "curves.html"

FRAME_LINES = 4
"""Lines of a chart in the terminal without a curve: its title, its frame and the tick labels."""


def plot(*runs: str | Path, output: str | Path | None = None) -> Path:
    """Write a page with loss and dev scores of every task over global steps.

    Runs whose configurations differ only in the seed have the same colour.

    Args:
        runs: folders of runs, their `save_path`.
        output: the HTML file; None means `curves.html` in the first run's folder.

    Raises:
        PalmError: no run is named, jinja2 is missing, or `output` is not an HTML file.
        StorageError: a folder has no history, or `output` cannot be written.
    """
    raise_any([] if output is None else path_problems(output=output))
    charts = charts_of(runs)
    file = Path(runs[0]) / PLOT_FILE if output is None else Path(output)
    if file.suffix != ".html":
        raise PalmError(f"{file}: curves are written as an HTML page; give a file name that ends in .html")
    page = environment().get_template("curves.html").render(runs=runs, charts=charts)
    write_text(file, page)
    return file


def charts_of(runs: Sequence[str | Path]) -> list[Chart]:
    """Return the charts of every task of the runs; runs that differ only in the seed have one colour.

    Raises:
        PalmError: no run is named.
        StorageError: a folder has no history.
    """
    raise_any(line for run in runs for line in path_problems(run=run))
    if not runs:
        raise PalmError("no run was named; name the folder of at least one run, its save_path")
    found = {str(run): read_run(run) for run in runs}
    settings = [_settings(run) for run in found.values()]
    groups = [
        json.dumps(each or name, sort_keys=True, default=str)
        for each, name in zip(settings, found, strict=True)
    ]
    kinds = list(dict.fromkeys(groups))
    names = _names(list(found.values()), settings)
    histories = [(name, run.history) for name, run in zip(names, found.values(), strict=True)]
    return list(task_charts(histories, [kinds.index(group) for group in groups]))


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings on which the result of a run depends, without its seed."""
    return {
        f"{title}.{each.name}" if title.startswith("task ") else each.name: each.value
        for title, values in run.sections.items()
        for each in values
        if each.name not in {*marked(NO_RESULT), *marked(NO_RESULT, TaskSettings), "random_seed"}
    }


def _names(runs: Sequence[Run], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name runs after the settings in which they differ, and after their folders where that is not enough."""
    known = dict.fromkeys(name for each in settings for name in each)
    differing = [
        name for name in known if len({json.dumps(each.get(name), default=str) for each in settings}) > 1
    ][:MOST_NAMED]
    found = [
        ", ".join(f"{name.rpartition(' ')[2]} {each.get(name, 'default')}" for name in differing if each)
        for each in settings
    ]
    return [
        f"{name} ({run.name})" if name and found.count(name) > 1 else name or run.name
        for name, run in zip(found, runs, strict=True)
    ]


def terminal_plot(*runs: str | Path, width: int = 100, height: int = 15, colour: bool = True) -> str:
    """Draw the curves of `plot` as text.

    Args:
        runs: folders of runs, their `save_path`.
        width: of a chart, in characters.
        height: of a chart, in lines.
        colour: use the terminal's colours; otherwise every run is drawn with a letter.
    """
    charts = charts_of(runs)
    try:
        import plotext
    except ImportError:
        raise PalmError("plots in a terminal need plotext: pip install 'palm-torch[plot]'") from None
    plotext.terminal.limit(width=True, height=False)  # text may be longer than the screen
    found = []
    for chart in charts:
        figure = plotext.figure
        figure.clear()
        figure.theme("simple" if colour else "colorless")
        lines = [line for line in chart.lines if line.curve.points and not line.faint]
        frame = chart.frame
        assert frame is not None
        # The names of several curves are listed above them, one per line.
        above = 2 * len(lines) + 4 if len(lines) > 1 else 0
        figure.plot_size(width, height + above)
        figure.title(printable(chart.title))
        for number, line in enumerate(lines):
            marker = "hd" if colour else "abcdefghijklmnop"[number % 16]
            points = map(list, zip(*line.curve.points, strict=True))
            signal = figure.signal(*points, marker=marker).lines()
            figure.draw(signal.label(printable(line.curve.name)[: width - 20]) if above else signal)
        for axis, values in (("x", frame.xs), ("y", frame.ys)):
            figure.ruler(axis).ticks(*map(list, zip(*labels(values), strict=True)))
        figure.ruler("x").lim(frame.x_low, frame.x_high)
        room = (height - FRAME_LINES + above) / (height - FRAME_LINES)
        figure.ruler("y").lim(frame.ys[0], frame.ys[0] + room * (frame.ys[-1] - frame.ys[0]))
        text = str(figure.build())
        found.append(text if colour else str(plotext.uncolorize(text)))
    return "\n".join(found)
