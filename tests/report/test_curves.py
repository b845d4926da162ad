"""Curves, smoothed and thinned, and the charts that are drawn of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from palm.report import curves
from palm.report.charts import Chart, Line, labels, thinned, ticks
from palm.report.curves import Curve
from palm.report.history import History
from palm.report.page import environment
from palm.train.callbacks import Drawn, Evaluated, Logged, Planned, PlannedTask


def test_a_thinned_curve_keeps_its_ends() -> None:
    points = thinned([(step, float(step)) for step in range(1000)], 100)
    assert (len(points), points[0], points[-1]) == (101, (0, 0.0), (999, 999.0))
    assert list(thinned([(1, 1.0)], 100)) == [(1, 1.0)]
    assert list(thinned([], 100)) == []


def history() -> History:
    steps = [
        Logged(1, "a", 1, loss=3.0, rows=10, tokens=100, seconds=1.0),
        Logged(2, "b", 1, rows=20, tokens=200, seconds=3.0),
        Logged(3, "a", 2, loss=1.0, rows=60, tokens=500, seconds=5.0),
    ]
    tasks = {"a": PlannedTask(True, 4, 2, 8), "b": PlannedTask(False, 2, 2, 8)}
    return History(Planned(total_steps=6, tasks=tasks), steps, [Drawn(3, {"a": 2, "b": 1})])


def test_losses_leave_out_what_was_not_a_number() -> None:
    assert curves.losses(history(), "a").points == [(1, 3.0), (3, 1.0)]
    assert curves.losses(history(), "b").points == []


def test_the_pace_is_what_was_done_between_two_steps() -> None:
    rows, tokens = curves.paces(history())
    assert (rows.points, tokens.points) == ([(2, 5.0), (3, 20.0)], [(2, 50.0), (3, 150.0)])
    rows, _ = curves.paces(replace(history(), evaluations=[Evaluated(2, {})]))
    assert rows.points == [(2, 5.0)]  # the evaluation is between the other two


def test_steps_that_were_had() -> None:
    assert curves.realised_steps(history(), "a").points == [(0, 0), (3, 2)]
    assert history().task_steps == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 199, [0, 50, 100, 150, 200]),
        (0.13, 4.2, [0, 1, 2, 3, 4, 5]),
        (-1e-5, 3e-4, [-1e-4, 0, 1e-4, 2e-4, 3e-4]),
        (70, 71, [70, 70.2, 70.4, 70.6, 70.8, 71]),
    ],
)
def test_ticks_are_round_and_enclose_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == expected


def svg(chart: Chart) -> str:
    pytest.importorskip("jinja2", reason="the extra report is not installed")
    return str(environment().get_template("chart.html").module.picture(chart))  # type: ignore[attr-defined]


def test_a_chart_puts_points_where_their_numbers_are() -> None:
    chart = Chart("loss", "loss", [Line(Curve("loss", [(0, 0.0), (50, 10.0), (100, 5.0)]))])
    points = re.search(r'<polyline points="([^"]+)"', svg(chart))
    assert points is not None
    assert points[1] == "80.0,192.0 245.0,12.0 410.0,102.0"  # the corners of the frame, its top, its middle


def test_the_axis_of_a_chart_encloses_its_numbers_at_even_steps() -> None:
    chart = Chart("loss", "loss", [Line(Curve("loss", [(0, -1.0), (50, 8.9)]))])
    assert chart.frame is not None
    assert [text for _, text in labels(chart.frame.ys)] == ["−2", "0", "2", "4", "6", "8", "10"]
    assert [chart.frame.y(value) for value in chart.frame.ys][::6] == [192.0, 12.0]


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [79.99999999, 80.00000001], [-1.0, -1.0]])
def test_a_chart_of_equal_numbers_can_be_drawn(values: list[float]) -> None:
    chart = Chart("same", "x", [Line(Curve("same", list(enumerate(values))), marks=True)])
    assert "nan" not in svg(chart)


def test_names_in_a_chart_are_escaped() -> None:
    chart = Chart("<b>", "<i>", [Line(Curve("<u>", [(0, 1.0), (1, 2.0)]), marks=True)])
    assert not re.search("<[biu]>", svg(chart))
