"""Loss and scores of runs beside each other: a page of charts, or text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from palm.core.checks import path_problems, raise_any
from palm.core.errors import PalmError
from palm.core.files.fs import write_text
from palm.report import curves
from palm.report.charts import Chart, Line, labels
from palm.report.curves import Curve
from palm.report.groups import SeedGroup, grouped_runs, mean_curve
from palm.report.history import History
from palm.report.page import environment
from palm.report.run import read_run

MOST_METRICS = 3
"""Of a task that are plotted: its first ones."""

PLOT_FILE = "curves.html"


def plot(*runs: str | Path, output: str | Path | None = None) -> Path:
    """Write a page with loss and dev scores of every task over global steps.

    Runs whose configurations differ in nothing but the seed are drawn as their mean, with each of them
    behind it; others beside each other.

    Args:
        runs: folders of runs, their `save_path`.
        output: the HTML file; `curves.html` in the first run's folder where None.

    Raises:
        PalmError: no run is named, jinja2 is missing, or `output` is not an HTML file.
        StorageError: a folder has no history, or `output` cannot be written.
    """
    charts = list(charts_of(runs))
    file = Path(runs[0]) / PLOT_FILE if output is None else Path(output)
    if file.suffix != ".html":
        raise PalmError(f"{file}: curves are written as a page; give a name that ends in .html")
    page = environment().get_template("curves.html").render(runs=runs, charts=charts)
    write_text(file, page, kind=PLOT_FILE)
    return file


def charts_of(runs: Sequence[str | Path]) -> Iterator[Chart]:
    """Yield charts for every task: its loss, then its first metrics."""
    raise_any(line for run in runs for line in path_problems(run=run))
    if not runs:
        raise PalmError("name at least one run: the folder that is its save_path")
    groups = grouped_runs([read_run(run) for run in runs])
    histories = [run.history for group in groups for run in group.runs]
    for task in dict.fromkeys(task for history in histories for task in history.tasks):
        yield Chart(f"{task}: loss", "loss", list(_loss_lines(task, groups)))
        found = [curve.name for history in histories for curve in curves.scores(history).get(task, ())]
        for name in list(dict.fromkeys(found))[:MOST_METRICS]:
            yield Chart(f"{task}: {name}", name, list(_score_lines(task, name, groups)))


def _loss_lines(task: str, groups: Sequence[SeedGroup]) -> Iterator[Line]:
    for number, group in enumerate(groups):
        yield from _behind(group, number, lambda history: curves.losses(history).get(task))
        yield from _mean(group, "", number, lambda history: curves.smooth_losses(history).get(task))
        yield from _mean(group, ", dev loss", number, lambda history: curves.dev_losses(history).get(task))


def _score_lines(task: str, name: str, groups: Sequence[SeedGroup]) -> Iterator[Line]:
    def score(history: History) -> Curve | None:
        own = curves.scores(history).get(task, ())
        return next((curve for curve in own if curve.name == name), None)

    for number, group in enumerate(groups):
        yield from _behind(group, number, score) if len(group.runs) > 1 else ()
        yield from _mean(group, "", number, score)


CurveOf = Callable[[History], Curve | None]


def _behind(group: SeedGroup, number: int, curve_of: CurveOf) -> Iterator[Line]:
    """Yield the curve of each run, drawn thinly."""
    for run in group.runs:
        if (curve := curve_of(run.history)) is not None:
            yield Line(curve, number, faint=True, in_table=False)


def _mean(group: SeedGroup, suffix: str, number: int, curve_of: CurveOf) -> Iterator[Line]:
    if (points := mean_curve(group, curve_of)) is not None:
        yield Line(Curve(f"{group.name}{suffix}", points), number, dash=1 if suffix else 0)


def terminal_plot(*runs: str | Path, width: int = 100, height: int = 15, colour: bool = True) -> str:
    """Draw the same curves as text.

    Args:
        runs: folders of runs, their `save_path`.
        width: of a chart, in letters.
        height: of a chart, in lines.
        colour: with the terminal's colours; without, runs have letters of their own.
    """
    charts = list(charts_of(runs))
    try:
        import plotext
    except ImportError:
        raise PalmError("plots in a terminal need plotext: pip install 'palm-torch[plot]'") from None
    found = []
    for chart in charts:
        figure = plotext.figure
        figure.clear()
        figure.theme("simple" if colour else "colorless")
        lines = chart.drawn
        frame = chart.frame
        if frame is None or not lines:
            continue
        # The names of the curves have lines of their own above them.
        above = len(lines) + 2 if len(lines) > 1 else 0
        figure.plot_size(width, height + above)
        figure.title(chart.title)
        for number, line in enumerate(lines):
            marker = "hd" if colour else "abcdefghijklmnop"[number % 16]
            points = map(list, zip(*line.curve.points, strict=True))
            signal = figure.signal(*points, marker=marker).lines()
            figure.draw(signal.label(line.curve.name[: width - 20]) if above else signal)
        for axis, values in (("x", frame.xs), ("y", frame.ys)):
            figure.ruler(axis).ticks(*map(list, zip(*labels(values), strict=True)))
        figure.ruler("x").lim(frame.x_low, frame.x_high)
        room = (height + above) / height
        figure.ruler("y").lim(frame.ys[0], frame.ys[0] + room * (frame.ys[-1] - frame.ys[0]))
        text = str(figure.build())
        found.append(text if colour else str(plotext.uncolorize(text)))
    return "\n".join(found)
