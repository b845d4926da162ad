"""Charts of the page as values: coordinates for its SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from palm.report import curves
from palm.report.curves import Curve, Point
from palm.report.history import History

MOST_POINTS = 400
"""Maximum points of a drawn curve: more than the chart has pixels for."""

MOST_MARKS = 120
"""Maximum points of a curve with marks, which show their values under the pointer."""

MOST_PLAIN = 1e7
"""Numbers from this on are written with a power of ten."""

MOST_METRICS = 3
"""Number of metrics drawn for a task: its first ones."""

DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""Patterns of lines, which differ not only in colour for colour-blind readers and greyscale prints."""


@dataclass(frozen=True)
class Frame:
    """The ranges of the axes, mapped to the picture inside its margins.

    Args:
        x_low: the first step.
        x_high: the last step.
        ys: the tick values of the y axis, in order.

    Attributes:
        width: of the picture; the other sizes are coordinates in it.
    """

    x_low: float
    x_high: float
    ys: Sequence[float]

    width: ClassVar[int] = 420
    height: ClassVar[int] = 236
    left: ClassVar[int] = 80
    right: ClassVar[int] = 410
    top: ClassVar[int] = 12
    bottom: ClassVar[int] = 192

    def x(self, value: float) -> float:
        """Return the x coordinate of a step, in units of the picture."""
        fraction = (value - self.x_low) / (self.x_high - self.x_low)
        return round(self.left + fraction * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        fraction = (value - self.ys[0]) / (self.ys[-1] - self.ys[0])
        return round(self.bottom - fraction * (self.bottom - self.top), 1)

    @property
    def xs(self) -> list[float]:
        """The tick values of the x axis."""
        found = ticks(self.x_low, self.x_high, 5)
        return [step for step in found if self.x_low <= step <= self.x_high]


@dataclass(frozen=True)
class Line:
    """A curve in a chart.

    Args:
        curve: its points, and its name in the legend and the table.
        colour: index of the page's colour.
        faint: draw it thinly behind the others, as raw points behind their mean.
        dash: index of its pattern in `DASHES`.
        marks: draw a dot on every point.
        in_legend: whether the legend names it.
    """

    curve: Curve
    colour: int = 0
    faint: bool = False
    dash: int = 0
    marks: bool = False
    in_legend: bool = True

    @property
    def kind(self) -> str:
        """The CSS classes of its colour."""
        return f"c{self.colour % 8}{' faint' if self.faint else ''}"

    @property
    def dashes(self) -> str:
        """The pattern of its dashes; empty for a solid line. Repeated colours get the next pattern."""
        return DASHES[(self.dash + self.colour // 8) % 4]

    @property
    def dots(self) -> Sequence[Point]:
        """The points that are marked."""
        has_dots = self.marks or len(self.curve.points) == 1
        return thinned(self.curve.points, MOST_MARKS) if has_dots else ()

    def path(self, frame: Frame) -> str:
        """Return the coordinates of its points, for an SVG polyline."""
        points = thinned(self.curve.points, MOST_POINTS)
        return " ".join(f"{frame.x(step)},{frame.y(value)}" for step, value in points)


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return every k-th point and the last, about `most` in all."""
    return [*points[: -1 : -(-len(points) // most)], *points[-1:]] if points else ()


@dataclass(frozen=True)
class Chart:
    """Lines over global steps.

    Args:
        title: of the figure.
        unit: of the y axis.
        lines: drawn in order.
        note: a sentence under the title.
        x_name: of the x axis.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    note: str = ""
    x_name: str = "global step"

    @property
    def frame(self) -> Frame | None:
        """The axes; None without points."""
        points = [point for line in self.lines for point in line.curve.points]
        if not points:
            return None
        first, last = _range([step for step, _ in points])
        return Frame(first, last, ticks(*_range([value for _, value in points]), 5))


def task_charts(runs: Sequence[tuple[str, History]], colours: Sequence[int] = ()) -> Iterator[Chart]:
    """Yield charts for every task: its loss, then its first metrics.

    Args:
        runs: their names and histories.
        colours: of the runs; a single run has a colour for each of its tasks.
    """
    histories = [history for _, history in runs]
    is_single = len(runs) == 1
    for place, task in enumerate(dict.fromkeys(task for history in histories for task in history.tasks)):
        lines = []
        for (name, history), colour in zip(runs, [place] if is_single else colours, strict=True):
            loss = curves.losses(history, task)
            of_run = ("running mean", "dev loss") if is_single else (name, f"{name}, dev loss")
            mean, dev = (curves.mean_losses(history, task), curves.dev_losses(history, task))
            lines += [
                Line(loss, colour, faint=True, marks=len(loss.points) <= MOST_MARKS, in_legend=is_single),
                Line(replace(mean, name=of_run[0]), colour),
                Line(replace(dev, name=of_run[1]), colour, dash=1, marks=True),
            ]
        metrics = dict.fromkeys(name for each in histories for name in curves.metric_names(each, task))
        yield from _with_points(f"{task}: loss", "loss", lines)
        for metric in [*metrics][:MOST_METRICS]:
            found = zip(runs, [place] if is_single else colours, strict=True)
            yield from _with_points(
                f"{task}: {metric}",
                metric,
                [
                    Line(
                        replace(curves.scores(each, task, metric), name=metric if is_single else name),
                        k,
                        marks=True,
                    )
                    for (name, each), k in found
                ],
            )


def _with_points(title: str, unit: str, lines: Sequence[Line]) -> list[Chart]:
    drawn = [line for line in lines if line.curve.points]
    return [Chart(title, unit, drawn)] if drawn else []


def labels(values: Sequence[float]) -> list[tuple[float, str]]:
    """Return the tick values of an axis with their texts."""
    step = values[1] - values[0] if len(values) > 1 else 1.0
    return [(value, _tick(value, step)) for value in values]


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return evenly spaced round numbers that enclose a range, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest value, extended to 0 if that is near, or if all values are equal."""
    low = min(values)
    high = max(values)
    if 0 < low < high / 2:
        low = 0.0
    widest = max(abs(low), abs(high))
    if high - low <= 1e-6 * widest:  # all equal, except for rounding
        low = low - (widest / 10 or 0.5)
        high = high + (widest / 10 or 0.5)
    return low, high


def shown_number(value: float) -> str:
    """Format a number for readers: four significant digits, with thousands separators."""
    if value == int(value) and abs(value) < 1e12:
        return minus(f"{int(value):,}")
    if abs(value) >= MOST_PLAIN:
        return minus(f"{value:.4g}")
    return minus(f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}")


def minus(text: str) -> str:
    """Replace the hyphens that begin numbers in a text with minus signs; -0.00 becomes 0.00."""
    return re.sub(r"(?<![\w.-])-(?=\d)", "\N{MINUS SIGN}", re.sub(r"-(0(\.0*)?)(?![\d.])", r"\1", text))


def _tick(value: float, step: float) -> str:
    """Format the tick value of an axis."""
    if abs(value) >= MOST_PLAIN:
        return minus(f"{value:.2g}")
    if abs(value) >= 10000 and value == int(value):
        return minus(f"{value / 1000:g}k")
    if value and step < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return minus(f"{float(mantissa):g}e{int(exponent)}")
    return minus(f"{value:g}")
