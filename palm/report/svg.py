"""Charts as inline SVG that follows the page's colours, each with its numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from palm.report.curves import Curve, Point

WIDTH = 420
HEIGHT = 236
LEFT = 52
RIGHT = 10
TOP = 10
BOTTOM = 38
"""The margins that hold the axes' numbers and names."""

MOST_POINTS = 400
"""Of a drawn curve: more than the chart has pixels to tell apart."""

MOST_MARKS = 120
"""Of a curve whose points have marks that tell their numbers under the pointer."""

MOST_ROWS = 120
"""Of the table behind a chart."""

NAME_WIDTH = 15
NAME_LENGTH = 28
"""What the name of a stage needs beside its line, where it runs downwards, and its letters at most."""

DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""Lines differ in more than colour, for those who cannot tell colours apart, and on grey paper."""


@dataclass(frozen=True)
class Line:
    """A curve in a chart.

    Args:
        curve: its name stands in the legend and above its column.
        colour: number of the page's colour.
        faint: drawn thinly behind the others, as raw points behind their mean.
        dash: which of `DASHES`.
        marks: a dot on every point.
        star: the point to mark as the best, if there is one.
        in_table: whether the table behind the chart has it.
    """

    curve: Curve
    colour: int = 0
    faint: bool = False
    dash: int = 0
    marks: bool = False
    star: Point | None = None
    in_table: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines over global steps.

    Args:
        title: what it shows.
        unit: of the y axis.
        lines: drawn in order.
        note: a sentence under the title.
        x_name: of the x axis.
        stages: after which step each stage of a run begins, and its name, in order.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    note: str = ""
    x_name: str = "global step"
    stages: Sequence[tuple[float, str]] = ()

    @property
    def columns(self) -> list[str]:
        """The heads of the table behind the chart."""
        return [self.x_name, *(line.curve.name for line in self._told)]

    @property
    def rows(self) -> list[list[str]]:
        """The lines of that table: all points, or some of many, a dash where a curve has none."""
        by_step = [dict(line.curve.points) for line in self._told]
        steps = sorted({step for points in by_step for step in points})
        every = -(-len(steps) // MOST_ROWS) if steps else 1
        kept = [*steps[:-1:every], *steps[-1:]]
        return [
            [shown(step), *(shown(points[step]) if step in points else "–" for points in by_step)]
            for step in kept
        ]

    @property
    def is_cut(self) -> bool:
        """True if the table leaves points out."""
        return len(self.rows) < len({step for line in self._told for step, _ in line.curve.points})

    @property
    def _told(self) -> list[Line]:
        return [line for line in self.lines if line.in_table]

    def svg(self) -> str:
        """The picture, without a title of its own: the figure around it has one."""
        curves = [line.curve for line in self.lines if line.curve.points]
        if not curves:
            return ""
        first, last = _range([step for curve in curves for step, _ in curve.points])
        xs = [step for step in ticks(first, last, 6) if first <= step <= last]
        ys = ticks(*_range([value for curve in curves for _, value in curve.points]), 5)
        frame = Frame(first, last, ys[0], ys[-1])
        parts = [*_axes(frame, xs, ys, self.x_name, self.unit), *_stages(frame, self.stages)]
        for line in self.lines:
            parts += _line(line, frame)
        return _picture(self.title, parts)


@dataclass(frozen=True)
class Bars:
    """A histogram.

    Args:
        title: what is counted.
        unit: of the y axis.
        x_name: of the x axis.
        bars: the names of the ranges, in order, and how many there are.
        note: a sentence under the title.
    """

    title: str
    unit: str
    x_name: str
    bars: Sequence[tuple[str, int]]
    note: str = ""
    is_cut = False
    lines: Sequence[Line] = ()

    @property
    def columns(self) -> list[str]:
        """The heads of the table behind the chart."""
        return [self.x_name, self.unit]

    @property
    def rows(self) -> list[list[str]]:
        """The lines of that table."""
        return [[name, f"{count:,}"] for name, count in self.bars]

    def svg(self) -> str:
        """The picture, without a title of its own."""
        ys = ticks(0, max(count for _, count in self.bars), 4)
        frame = Frame(0, len(self.bars), ys[0], ys[-1])
        parts = list(_axes(frame, [], ys, self.x_name, self.unit))
        every = -(-len(self.bars) // 6)
        for number, (name, count) in enumerate(self.bars):
            left = frame.x(number + 0.08)
            right = frame.x(number + 0.92)
            top = frame.y(count)
            bottom = frame.y(0)
            parts.append(
                f'<rect x="{left}" y="{top}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
                f'class="bar c0"><title>{escape(name)}: {count:,}</title></rect>'
            )
            if number % every == 0:
                middle = frame.x(number + 0.5)
                below = HEIGHT - BOTTOM + 16
                parts.append(f'<text x="{middle}" y="{below}" text-anchor="middle">{escape(name)}</text>')
        return _picture(self.title, parts)


@dataclass(frozen=True)
class Frame:
    """The range of the axes, which is laid on the picture inside its margins."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Return the place of a step, in the units of the picture."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return the place of a number."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _picture(title: str, parts: Sequence[str]) -> str:
    label = escape(f"{title}; the numbers are in the table below")
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" class="chart">'
    return f"{opening}{''.join(parts)}</svg>"


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers, evenly spaced, that enclose a range; their steps are 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest, with 0 where that is near, and some width where all are equal."""
    low = min(values)
    high = max(values)
    if 0 < low < high / 2:
        low = 0.0
    widest = max(abs(low), abs(high))
    if high - low <= 1e-6 * widest:  # all equal, but for how numbers are rounded
        low = low - (widest / 10 or 0.5)
        high = high + (widest / 10 or 0.5)
    return low, high


def shown(value: float) -> str:
    """A number as people read it: four digits that count, thousands apart, no long rows of zeros."""
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _tick(value: float, step: float) -> str:
    """A number beside an axis."""
    if abs(value) >= 10000 and value == int(value):
        return f"{value / 1000:g}k"
    if value and step < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:g}"


def _axes(frame: Frame, xs: Sequence[float], ys: Sequence[float], x_name: str, unit: str) -> Iterator[str]:
    right = WIDTH - RIGHT
    bottom = HEIGHT - BOTTOM
    for value in ys:
        y = frame.y(value)
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}" class="grid"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{_tick(value, ys[1] - ys[0])}</text>'
    for value in xs:
        x = frame.x(value)
        yield f'<line x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}" class="axis"/>'
        anchor = "end" if x > right - 12 else "middle"
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}">{_tick(value, xs[1] - xs[0])}</text>'
    yield f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" class="axis"/>'
    centre = (LEFT + right) / 2
    yield f'<text x="{centre}" y="{HEIGHT - 6}" text-anchor="middle" class="name">{escape(x_name)}</text>'
    middle = (TOP + bottom) / 2
    yield (
        f'<text x="12" y="{middle}" text-anchor="middle" class="name" '
        f'transform="rotate(-90 12 {middle})">{escape(unit)}</text>'
    )


def _stages(frame: Frame, stages: Sequence[tuple[float, str]]) -> Iterator[str]:
    """A vertical line where a stage begins, and its name where there is room; all names are in a title."""
    places: dict[float, list[str]] = {}
    for step, name in stages:
        if step < frame.x_high:  # the first one begins before the first point
            places.setdefault(frame.x(max(step, frame.x_low)), []).append(name)
    for x, end in pairwise([*places, WIDTH - RIGHT]):
        names = ", ".join(places[x])
        yield f'<g class="stage"><title>{escape(names)}</title>'
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        if end - x >= NAME_WIDTH:
            name = names if len(names) <= NAME_LENGTH else f"{names[: NAME_LENGTH - 1]}…"
            place = f"{x + 4:g} {TOP + 3}"
            yield f'<text transform="translate({place}) rotate(90)">{escape(name)}</text>'
        yield "</g>"


def _line(line: Line, frame: Frame) -> Iterator[str]:
    points = line.curve.thinned(MOST_POINTS).points
    if not points:
        return
    path = " ".join(f"{frame.x(step)},{frame.y(value)}" for step, value in points)
    kind = f"c{line.colour % 8}{' faint' if line.faint else ''}"
    dash = f' stroke-dasharray="{DASHES[line.dash % 4]}"' if line.dash % 4 else ""
    yield f'<polyline points="{path}" class="line {kind}"{dash}/>'
    name = escape(line.curve.name)
    if line.marks or len(points) == 1:
        for step, value in line.curve.thinned(MOST_MARKS).points:
            told = f"{name}, step {shown(step)}: {shown(value)}"
            yield _circle(frame, (step, value), 1.6 if line.faint else 2.6, f"dot {kind}", told)
    if line.star is not None:
        told = f"best {name}: {shown(line.star[1])} at step {shown(line.star[0])}"
        yield _circle(frame, line.star, 5.5, f"star {kind}", told)


def _circle(frame: Frame, point: Point, radius: float, kind: str, told: str) -> str:
    x = frame.x(point[0])
    y = frame.y(point[1])
    return f'<circle cx="{x}" cy="{y}" r="{radius}" class="{kind}"><title>{told}</title></circle>'
