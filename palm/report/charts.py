"""Charts of a page: specifications for Vega-Lite, made by Altair, and the tables of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from palm.core.errors import PalmError
from palm.report.curves import Curve

COLOURS = 8
"""Number of colours of the page's style; after them, lines differ in their dashes."""

DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3])
"""Patterns of lines."""

DASHED = [4, 3]
"""The pattern of a curve that belongs to a solid one of the same colour."""

SHORT_NAME = 14
"""Length up to which the names of curves stand beside one another."""

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


@cache
def _altair() -> Any:
    try:
        import altair
    except ImportError:
        raise PalmError("charts need altair and vl-convert: pip install 'palm-torch[report]'") from None
    return altair


@cache
def scripts() -> str:
    """Return the scripts that draw the charts: Vega, Vega-Lite and Vega-Embed.

    Raises:
        PalmError: vl-convert is missing.
    """
    try:
        import vl_convert
    except ImportError:
        raise PalmError("charts need altair and vl-convert: pip install 'palm-torch[report]'") from None
    bundle: Any = vl_convert.javascript_bundle  # its stub requires a snippet
    return str(bundle())


def colour(number: int) -> str:
    """Return the colour of a task or run; it is defined in the style of the page."""
    return f"var(--c{number % COLOURS})"


def line_chart(
    title: str, unit: str, curves: Sequence[Curve], note: str = "", x_name: str = "global step"
) -> Chart:
    """Draw curves; those of one group have one colour, and a click on it in the legend hides the others."""
    alt = _altair()
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return Chart(title)
    groups = list(dict.fromkeys(map(_group, curves)))
    names = [curve.name for curve in drawn]
    dashes = [_dash(curve, groups) for curve in drawn]
    values = [
        {"x": x, "y": y, "name": curve.name, "group": _group(curve)}
        for curve in drawn
        for x, y in curve.points
    ]
    shown = alt.selection_point(fields=["group"], bind="legend")
    colours = alt.Scale(domain=groups, range=[colour(number) for number in range(len(groups))])
    columns = 4 if max(map(len, groups)) <= SHORT_NAME else 1
    legend = alt.Legend(title=None, orient="bottom", columns=columns, labelLimit=360) if groups[1:] else None
    with_marks = max(len(curve.points) for curve in drawn) <= MOST_MARKS
    chart = (
        alt.Chart(alt.InlineData(values))
        .mark_line(point=with_marks, clip=True)
        .encode(
            x=alt.X("x:Q", title=x_name),
            y=alt.Y("y:Q", title=unit, scale=_y_scale([y for curve in drawn for _, y in curve.points])),
            color=alt.Color("group:N", scale=colours, legend=legend),
            # Vega merges the legends of equal domains.
            strokeDash=alt.StrokeDash(
                "name:N",
                scale=alt.Scale(domain=names, range=dashes),
                legend=legend if names == groups else None,
            ),
            detail="name:N",
            opacity=alt.condition(shown, alt.value(1), alt.value(0.06)) if legend else alt.value(1),
            tooltip=[
                alt.Tooltip("name:N", title="curve"),
                alt.Tooltip("x:Q", title=x_name),
                alt.Tooltip("y:Q", title=unit, format=".4g"),
            ],
        )
    )
    return _chart(
        title, chart, [x_name, *names], _rows(drawn), note, *([shown] if legend else []), has_log=True
    )


def _group(curve: Curve) -> str:
    """Return the name that the legend has for a curve."""
    return curve.group or curve.name


def _dash(curve: Curve, groups: Sequence[str]) -> list[int]:
    """Return the pattern of a curve's line; groups of one colour differ in it."""
    return DASHED if curve.is_dashed else DASHES[groups.index(_group(curve)) // COLOURS % len(DASHES)]


def _rows(curves: Sequence[Curve]) -> list[list[Any]]:
    """Return the table of curves: for each x the y of every curve, None where it has no point."""
    by_name = [dict(curve.points) for curve in curves]
    steps = sorted({x for points in by_name for x in points})
    return [[x, *(points.get(x) for points in by_name)] for x in steps]


def _y_scale(values: Sequence[float]) -> Any:
    """Return a scale from the least to the largest value; Vega draws equal ones at 0."""
    low, high = min(values), max(values)
    if low < high:
        return _altair().Scale(zero=False)
    room = abs(low) / 10 or 0.5
    return _altair().Scale(domain=[low - room, high + room])


def score_chart(title: str, rows: Sequence[tuple[str, float, Sequence[float], float | None]]) -> Chart:
    """Draw scores from 0 to 1, one a line: name, score, interval (or nothing), and baseline (or None)."""
    alt = _altair()
    values = [
        {"name": name, "score": score, "baseline": baseline}
        | (dict(zip(("low", "high"), ends, strict=True)) if ends else {})
        for name, score, ends, baseline in rows
    ]
    names = alt.Y("name:N", title=None, sort=[name for name, *_ in rows])
    tooltip = [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("score", "low", "high", "baseline")]
    base = alt.Chart(alt.InlineData(values)).encode(y=names, tooltip=["name:N", *tooltip])
    axis = alt.Scale(domain=[min(0.0, *(score for _, score, *_ in rows)), 1])
    ends = base.mark_rule(strokeWidth=3).encode(
        x=alt.X("low:Q", scale=axis, title="score; 1 is perfect"), x2="high:Q", color=alt.value(colour(0))
    )
    points = base.mark_point(filled=True, size=70).encode(x="score:Q", color=alt.value(colour(0)))
    marks = base.mark_tick(thickness=3, size=16).encode(x="baseline:Q", color=alt.value(colour(1)))
    table = [(name, score, *(ends or (None, None)), baseline) for name, score, ends, baseline in rows]
    head = ["task", "score", "low", "high", "baseline"]
    note = "Lines are 95 % intervals, orange ticks the scores of always the same answer."
    return _chart(title, ends + points + marks, head, table, note, height=26 * len(rows) + 10)


def point_chart(
    title: str, names: tuple[str, str], points: Sequence[tuple[float, float]], note: str = ""
) -> Chart:
    """Draw single points, such as residuals over true numbers, with a line at 0."""
    alt = _altair()
    values = [{"x": x, "y": y} for x, y in points]
    base = alt.Chart(alt.InlineData(values))
    shown = base.mark_circle(opacity=0.5, color=colour(0)).encode(
        x=alt.X("x:Q", title=names[0], scale=alt.Scale(zero=False)),
        y=alt.Y("y:Q", title=names[1]),
        tooltip=[alt.Tooltip("x:Q", title=names[0]), alt.Tooltip("y:Q", title=names[1], format=".4g")],
    )
    zero = alt.Chart(alt.InlineData([{"y": 0}])).mark_rule(color=colour(1)).encode(y="y:Q")
    return _chart(title, zero + shown, names, points, note)


def difference_chart(
    title: str, unit: str, rows: Sequence[tuple[str, float, float, float, Sequence[float]]]
) -> Chart:
    """Draw differences, one a line: name, mean, ends of its interval, and the seeds as points."""
    alt = _altair()
    means = [{"name": name, "mean": mean, "low": low, "high": high} for name, mean, low, high, _ in rows]
    seeds = [{"name": name, "seed": value} for name, *_, values in rows for value in values]
    names = alt.Y("name:N", title=None, sort=[name for name, *_ in rows], axis=alt.Axis(labelLimit=320))
    base = alt.Chart(alt.InlineData(means)).encode(y=names)
    tooltip = ["name:N", *(alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("mean", "low", "high"))]
    ends = base.mark_rule(strokeWidth=3, color=colour(0)).encode(
        x=alt.X("low:Q", title=f"{unit}; above 0, the first is better"), x2="high:Q", tooltip=tooltip
    )
    points = base.mark_point(filled=True, size=70, color=colour(0)).encode(x="mean:Q", tooltip=tooltip)
    marks = (
        alt.Chart(alt.InlineData(seeds))
        .mark_point(size=26, color=colour(1))
        .encode(y=names, x="seed:Q", tooltip=["name:N", alt.Tooltip("seed:Q", format="+.2f")])
    )
    zero = alt.Chart(alt.InlineData([{"x": 0}])).mark_rule(color="var(--soft)").encode(x="x:Q")
    table = [(name, mean, low, high, *values) for name, mean, low, high, values in rows]
    head = ["difference", "mean", "low", "high", *(f"seed {k + 1}" for k in range(len(rows[0][-1])))]
    note = "Lines are 95 % intervals around the mean, circles single seeds."
    return _chart(title, zero + ends + marks + points, head, table, note, height=28 * len(rows) + 10)


def _chart(
    title: str,
    chart: Any,
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    note: str,
    *selections: Any,
    height: int = 210,
    has_log: bool = False,
) -> Chart:
    """Make a chart that is as wide as its place, and can be moved, and zoomed with shift and the wheel."""
    layers = [*getattr(chart, "layer", ())]
    # Names have no scale that could be zoomed.
    axes = ["x"] if layers and head[0] in ("task", "difference") else ["x", "y"]
    zoom = _altair().selection_interval(bind="scales", encodings=axes, zoom="wheel![event.shiftKey]")
    if layers:
        layers[-1] = layers[-1].add_params(zoom)
        chart.layer = layers
    else:
        chart = chart.add_params(*selections, zoom)
    spec = chart.properties(width="container", height=height).to_dict()
    del spec["config"]  # the page has its own
    return Chart(title, spec, head, rows, note, has_log)
