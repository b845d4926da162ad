"""Loss and scores of runs as a figure of matplotlib, or as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palm.core.errors import PalmError
from palm.core.files.fs import write_atomically
from palm.report import curves
from palm.report.curves import Curve
from palm.report.groups import Band, SeedGroup, band, grouped_runs
from palm.report.history import History
from palm.report.run import read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_METRICS = 3
"""Of a task that are plotted: its first ones."""

COLOURS = ("#0b6bb8", "#c2570c", "#12804a", "#9a3b8c", "#7d6300", "#0a7d80", "#b3261e", "#57606a")

NEEDS = "plots need matplotlib: pip install 'palm-torch[plot]'"


@dataclass(frozen=True)
class Panel:
    """One curve of every run: a task's loss, or one of its metrics.

    Args:
        task: its name.
        metric: its name; None for the loss.
    """

    task: str
    metric: str | None = None

    @property
    def what(self) -> str:
        """The quantity on the curve."""
        return self.metric or "loss"

    def curve(self, history: History) -> Curve | None:
        """That of a run, a loss smoothed; None where it has none."""
        if self.metric is None:
            loss = self.raw(history)
            return None if loss is None else loss.smoothed()
        scores = curves.scores(history).get(self.task, ())
        return next((curve for curve in scores if curve.name == self.metric), None)

    def raw(self, history: History) -> Curve | None:
        """The loss of a run, step by step."""
        return curves.losses(history).get(self.task)

    def dev_loss(self, history: History) -> Curve | None:
        """The loss of a run on its dev data, drawn dashed beside the other."""
        return curves.dev_losses(history).get(self.task)


def plot(*runs: str | Path) -> Figure:
    """Loss and dev scores of every task over global steps: raw points, and smoothed over them.

    Runs whose configurations differ in nothing but the seed are drawn as their mean with its standard
    deviation; others beside each other, in the colours of the legend.

    Args:
        runs: folders of runs, their `save_path`.

    Returns:
        A figure of matplotlib: `palm.plot("out").savefig("curves.svg")`.

    Raises:
        PalmError: no run is named, or matplotlib is missing.
        StorageError: a folder has no history.
    """
    groups = _groups(runs)
    try:
        from matplotlib import pyplot
    except ImportError:
        raise PalmError(NEEDS) from None
    rows = list(_panels(groups))
    columns = max(len(row) for row in rows)
    size = (4.6 * columns, 3.2 * len(rows) + 0.4)
    figure, axes = pyplot.subplots(len(rows), columns, figsize=size, squeeze=False, layout="constrained")
    for panels, row in zip(rows, axes, strict=True):
        for panel, place in zip(panels, row, strict=False):
            _draw(place, panel, groups)
        for place in row[len(panels) :]:
            place.set_axis_off()
    if len(groups) > 1:
        handles, labels = axes[0, 0].get_legend_handles_labels()
        kept = dict(zip(labels, handles, strict=True))
        figure.legend(kept.values(), kept.keys(), loc="outside upper center", ncols=min(3, len(kept)))
    pyplot.close(figure)  # whoever has the figure keeps it; a notebook shows it once
    return figure


def _groups(runs: Sequence[str | Path]) -> list[SeedGroup]:
    if not runs:
        raise PalmError("name at least one run: the folder that is its save_path")
    return grouped_runs([read_run(run) for run in runs])


def _panels(groups: Sequence[SeedGroup]) -> Iterator[list[Panel]]:
    """A row for every task: its loss, then its first metrics."""
    histories = [run.history for group in groups for run in group.runs]
    for task in dict.fromkeys(task for history in histories for task in history.tasks):
        found = [curve.name for history in histories for curve in curves.scores(history).get(task, ())]
        metrics = list(dict.fromkeys(found))[:MOST_METRICS]
        yield [Panel(task), *(Panel(task, name) for name in metrics)]


def _draw(axes: Axes, panel: Panel, groups: Sequence[SeedGroup]) -> None:
    for number, group in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        for run in group.runs if panel.metric is None else ():
            raw = panel.raw(run.history)
            if raw is not None and raw.points:
                axes.plot(*zip(*raw.points, strict=True), ".", color=colour, alpha=0.25, markersize=3)
        marker = "" if panel.metric is None else "o"
        _draw_band(axes, band(group, panel.curve), group.name, color=colour, marker=marker, markersize=3)
        if panel.metric is None:
            label = "dev loss" if len(groups) == 1 else f"{group.name}, dev loss"
            _draw_band(axes, band(group, panel.dev_loss), label, color=colour, linestyle="--")
    axes.set_title(f"{panel.task}: {panel.what}", fontsize="medium")
    axes.set_xlabel("global step")
    axes.set_ylabel(panel.what)
    axes.grid(alpha=0.25)
    if len(groups) == 1 and panel.metric is None and len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize="small")


def _draw_band(axes: Axes, found: Band | None, label: str, **style: Any) -> None:
    if found is None:
        return
    if found.spread.any():
        style["marker"] = ""  # an average has no points of its own
    axes.plot(found.steps, found.mean, label=label, linewidth=1.6, **style)
    if found.spread.any():
        low = found.mean - found.spread
        high = found.mean + found.spread
        axes.fill_between(found.steps, low, high, color=style["color"], alpha=0.18, linewidth=0)


def save_figure(figure: Any, file: Path) -> None:
    """Write a figure of matplotlib as its file's name says.

    Raises:
        PalmError: there is no such format.
        StorageError: the file cannot be written, or is not palm's.
    """
    try:
        with write_atomically(file, kind="curves.png") as opened:
            figure.savefig(opened, dpi=150, format=file.suffix[1:] or "png")
    except ValueError as error:
        raise PalmError(f"{file}: {error}") from None


def terminal_plot(*runs: str | Path, width: int = 100, height: int = 15, colour: bool = True) -> str:
    """The same curves as text, a chart for each.

    Args:
        runs: folders of runs, their `save_path`.
        width: of a chart, in letters.
        height: of a chart, in lines.
        colour: with the terminal's colours; without, runs have letters of their own.

    Raises:
        PalmError: no run is named, or plotext is missing.
        StorageError: a folder has no history.
    """
    groups = _groups(runs)
    try:
        import plotext
    except ImportError:
        raise PalmError("plots in a terminal need plotext: pip install 'palm-torch[plot]'") from None
    charts = [chart for row in _panels(groups) for panel in row if (chart := _chart(panel, groups, colour))]
    found = []
    for title, lines in charts:
        figure = plotext.figure
        figure.clear()
        figure.theme("simple" if colour else "colorless")
        figure.plot_size(width, height)
        figure.title(title)
        for name, marker, points in lines:
            figure.draw(
                figure.signal(*map(list, zip(*points, strict=True)), marker=marker).lines().label(name)
            )
        text = str(figure.build())
        found.append(text if colour else str(plotext.uncolorize(text)))
    return "\n".join(found)


def _chart(
    panel: Panel, groups: Sequence[SeedGroup], colour: bool
) -> tuple[str, list[tuple[str, str, Sequence[curves.Point]]]] | None:
    """A title, and lines with their names and markers; None where no run has the curve."""
    lines: list[tuple[str, str, Sequence[curves.Point]]] = []
    parts = [("", panel.curve), *([(", dev loss", panel.dev_loss)] if panel.metric is None else [])]
    for group in groups:
        for suffix, curve in parts:
            found = band(group, curve)
            if found is not None:
                marker = "hd" if colour else "abcdefghijklmnop"[len(lines) % 16]
                points = list(zip(found.steps.tolist(), found.mean.tolist(), strict=True))
                lines.append((f"{group.name}{suffix}", marker, points))
    return (f"{panel.task}: {panel.what}", lines) if lines else None
