"""Charts of a page: specifications for Vega-Lite, made by Altair, and the tables of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from palm.core.errors import PalmError
from palm.report.curves import Curve

COLOURS = 8
"""Number of colours of the page's style; after them, lines differ in their dashes."""

DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3])
"""Patterns of lines."""

DASHED = [4, 3]
"""The pattern of a curve that belongs to a solid one of the same colour."""

STEPS = "global step"
"""The name of most x axes."""

MANY = 1e6
"""Values from which an axis has exponents, as that of a loss that diverged."""

MOST_MARKS = 60
"""Maximum points of curves that are drawn with a mark on each."""


@dataclass(frozen=True)
class Chart:
    """A figure.

    Args:
        title: its title.
        spec: what Vega-Lite draws; empty without points.
        head: the names of the columns of its table.
        rows: the table of its numbers.
        note: a sentence under the title.
        has_log: whether its y axis can become logarithmic.
    """

    title: str
    spec: dict[str, Any] = field(default_factory=dict)
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    note: str = ""
    has_log: bool = False


def library(name: str) -> Any:
    """Import a library of the extra `report`.

    Raises:
        PalmError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise PalmError(f"the report needs {name}: pip install 'palm-torch[report]'") from None


def colour(number: int) -> str:
    """Return the colour of a task or run; it is defined in the style of the page."""
    return f"var(--c{number % COLOURS})"


def line_chart(title: str, unit: str, curves: Sequence[Curve], note: str = "", x_name: str = STEPS) -> Chart:
    """Draw curves; those of one group have one colour, and a click on it in the legend hides the others."""
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return Chart(title)
    alt = library("altair")
    everyone = list(dict.fromkeys(curve.legend for curve in curves))
    groups = list(dict.fromkeys(curve.legend for curve in drawn))
    names = [curve.name for curve in drawn]
    values = [
        {"x": x, "y": y, "name": curve.name, "group": curve.legend}
        for curve in drawn
        for x, y in curve.points
    ]
    shown = alt.selection_point(fields=["group"], bind="legend")
    # A run or task has one colour in all charts of a page, also in those where others have no points.
    colours = alt.Scale(domain=groups, range=[colour(everyone.index(group)) for group in groups])
    legend = alt.Legend(title=None, orient="bottom") if groups[1:] else None
    encoded = alt.Chart(alt.InlineData(values)).encode(
        x=alt.X("x:Q", title=x_name, axis=alt.Axis(tickMinStep=1) if x_name == STEPS else alt.Axis()),
        y=_y_axis(unit, [y for curve in drawn for _, y in curve.points]),
        color=alt.Color("group:N", scale=colours, legend=legend),
        # Vega merges the legends of equal domains.
        strokeDash=alt.StrokeDash(
            "name:N",
            scale=alt.Scale(domain=names, range=[_dash(curve, everyone) for curve in drawn]),
            legend=legend if names == groups else None,
        ),
        detail="name:N",
        opacity=alt.condition(shown, alt.value(1), alt.value(0.06)) if legend else alt.value(1),
        tooltip=_tooltip(("name:N", "curve"), ("x:Q", x_name), ("y:Q", unit)),
    )
    lines = encoded.mark_line(point=max(len(curve.points) for curve in drawn) <= MOST_MARKS, clip=True)
    chart = lines.add_params(shown) if legend else lines
    return _chart(title, chart, [x_name, *names], _rows(drawn), note, has_log=True)


def _tooltip(*fields: tuple[str, str]) -> list[Any]:
    alt = library("altair")
    numbers = {"format": ".4~g"}
    return [alt.Tooltip(name, title=title, **(numbers if name[-1] == "Q" else {})) for name, title in fields]


def _dash(curve: Curve, groups: Sequence[str]) -> list[int]:
    """Return the pattern of a curve's line; groups of one colour differ in it."""
    return DASHED if curve.is_dashed else DASHES[groups.index(curve.legend) // COLOURS % len(DASHES)]


def _rows(curves: Sequence[Curve]) -> list[list[Any]]:
    """Return the table of curves: for each x the y of every curve, None where it has no point."""
    by_name = [dict(curve.points) for curve in curves]
    steps = sorted({x for points in by_name for x in points})
    return [[x, *(points.get(x) for points in by_name)] for x in steps]


def _y_axis(title: str, values: Sequence[float]) -> Any:
    """Return an axis from the least to the largest value; Vega draws equal ones at 0."""
    alt = library("altair")
    low, high = min(values), max(values)
    room = abs(low) / 10 or 0.5
    scale = alt.Scale(zero=False) if low < high else alt.Scale(domain=[low - room, high + room])
    axis = alt.Axis(format=".3~g") if max(abs(low), abs(high)) >= MANY else alt.Axis()
    return alt.Y("y:Q", title=title, scale=scale, axis=axis)


def interval_chart(
    title: str,
    unit: str,
    rows: Sequence[tuple[str, float, Sequence[float], Sequence[float]]],
    others: str,
    note: str,
    domain: Sequence[float] | None = None,
) -> Chart:
    """Draw values with their intervals, one a line, all on one scale.

    Args:
        title: its title.
        unit: of the values.
        rows: name, value, ends of the interval (or nothing), and values that are compared with it.
        others: the name of those.
        note: a sentence under the title.
        domain: the ends of the scale; None: what the values need.
    """
    alt = library("altair")
    means = [
        {"name": name, "value": value, **({"low": min(ends), "high": max(ends)} if ends else {})}
        for name, value, ends, _ in rows
    ]
    marks = [{"name": name, "other": value} for name, *_, values in rows for value in values]
    names = alt.Y("name:N", title=None, sort=[name for name, *_ in rows], axis=alt.Axis(labelLimit=320))
    scale = alt.Scale(domain=domain) if domain else alt.Scale()
    base = alt.Chart(alt.InlineData(means)).encode(
        y=names,
        tooltip=_tooltip(("name:N", "name"), ("value:Q", "value"), ("low:Q", "low"), ("high:Q", "high")),
    )
    ends = base.mark_rule(strokeWidth=3, color=colour(0)).encode(
        x=alt.X("low:Q", title=unit, scale=scale), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=70, color=colour(0)).encode(x="value:Q")
    compared = alt.Chart(alt.InlineData(marks)).mark_point(size=40, color=colour(1), shape="diamond")
    compared = compared.encode(
        y=names, x="other:Q", tooltip=_tooltip(("name:N", "name"), ("other:Q", others))
    )
    zero = alt.Chart(alt.InlineData([{"x": 0}])).mark_rule(color="var(--soft)").encode(x="x:Q")
    most = max(len(values) for *_, values in rows)
    numbers = [f" {k + 1}" for k in range(most)] if most > 1 else [""] * most
    head = ["name", "value", "low", "high", *(f"{others}{number}" for number in numbers)]
    table = [(name, value, *(ends or (None, None)), *values) for name, value, ends, values in rows]
    return _chart(title, zero + ends + points + compared, head, table, note, 28 * len(rows) + 10, axes=["x"])


def point_chart(title: str, names: tuple[str, str], points: Sequence[tuple[float, float]]) -> Chart:
    """Draw single points, such as residuals over true numbers, with a line at 0."""
    alt = library("altair")
    shown = alt.Chart(alt.InlineData([{"x": x, "y": y} for x, y in points])).mark_circle(
        opacity=0.5, color=colour(0)
    )
    shown = shown.encode(
        x=alt.X("x:Q", title=names[0], scale=alt.Scale(zero=False)),
        y=alt.Y("y:Q", title=names[1]),
        tooltip=_tooltip(("x:Q", names[0]), ("y:Q", names[1])),
    )
    zero = alt.Chart(alt.InlineData([{"y": 0}])).mark_rule(color=colour(1)).encode(y="y:Q")
    # The first layer gets the selection, which needs both fields.
    return _chart(title, shown + zero, names, points, "")


def _chart(
    title: str,
    chart: Any,
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    note: str,
    height: int = 210,
    has_log: bool = False,
    axes: Sequence[str] = ("x", "y"),
) -> Chart:
    """Make a chart that is as wide as its place, and can be moved, and zoomed with shift and the wheel."""
    alt = library("altair")
    zoom = alt.selection_interval(bind="scales", encodings=axes, zoom="wheel![event.shiftKey]")
    spec = chart.add_params(zoom).properties(width="container", height=height).to_dict()
    del spec["config"]  # the page has its own
    return Chart(title, spec, head, rows, note, has_log)
