"""The data of figures, and what is drawn of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from palm.report import curves
from palm.report.charts import DASHED, DASHES, Chart, interval_chart, line_chart, point_chart
from palm.report.curves import Curve, curve_of
from palm.report.history import History
from palm.train.callbacks import Drawn, Evaluated, Logged, Losses, Planned, PlannedTask

pytest.importorskip("altair", reason="the extra report is not installed")


def history() -> History:
    steps = [
        Logged(1, "a", 1, loss=3.0, rows=10, tokens=100, seconds=1.0),
        Logged(2, "b", 1, rows=20, tokens=200, seconds=3.0),
        Logged(3, "a", 2, loss=1.0, rows=60, tokens=500, seconds=5.0),
    ]
    tasks = {"a": PlannedTask(True, 4, 2, 8), "b": PlannedTask(False, 2, 2, 8)}
    return History(Planned(total_steps=6, tasks=tasks), steps, [Drawn(3, {"a": 2, "b": 1})])


def test_losses_are_those_between_logged_steps() -> None:
    assert curve_of("b", [(2, float("nan"))]).points == []  # it is not a number
    new = replace(history(), losses=[Losses(2, {"a": 3.0, "b": 0.5}), Losses(4, {"a": 2.0})])
    assert curves.mean_losses(new, "a") == [(2, 3.0), (4, 2.0)]
    assert curves.mean_losses(new, "b") == [(2, 0.5)]


def test_the_pace_is_what_was_done_between_two_steps() -> None:
    rows, tokens = curves.paces(history())
    assert (rows.points, tokens.points) == ([(2, 5.0), (3, 20.0)], [(2, 50.0), (3, 150.0)])
    rows, _ = curves.paces(replace(history(), evaluations=[Evaluated(2, {})]))
    assert rows.points == [(2, 5.0)]  # the evaluation is between the other two
    assert curves.mean_of(rows) == 5.0


def test_steps_that_were_had() -> None:
    assert curves.realised_steps(history(), "a") == [(0, 0), (3, 2)]
    assert history().task_steps == {"a": 2, "b": 1}


def dashes_of(chart: Chart) -> dict[str, Any]:
    scale = chart.spec["encoding"]["strokeDash"]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def test_a_chart_has_the_points_of_its_curves_and_a_table_of_them() -> None:
    chart = line_chart(
        "loss", "loss", [Curve("a", [(1, 0.5), (3, 0.25)]), Curve("b", [(3, 7.0)]), Curve("c", [])]
    )
    (values,) = chart.spec["datasets"].values()
    expected = [("a", 1, 0.5), ("a", 3, 0.25), ("b", 3, 7.0)]
    assert [(each["name"], each["x"], each["y"]) for each in values] == expected
    assert (chart.head, chart.rows) == (["global step", "a", "b"], [[1, 0.5, None], [3, 0.25, 7.0]])
    assert line_chart("nothing", "x", [Curve("c", [])]).spec == {}


def test_seeds_have_the_colour_and_the_line_of_their_legend() -> None:
    seeds = [Curve("rate 1 (a)", [(0, 1.0)], "rate 1"), Curve("rate 1 (b)", [(0, 2.0)], "rate 1")]
    chart = line_chart("loss", "loss", [*seeds, Curve("rate 2", [(0, 3.0)], "rate 2")])
    scale = chart.spec["encoding"]["color"]["scale"]
    expected = {"rate 1": "var(--c0)", "rate 2": "var(--c1)"}
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == expected
    assert dashes_of(chart) == {name: [1, 0] for name in ("rate 1 (a)", "rate 1 (b)", "rate 2")}
    dev = Curve("rate 2, dev", [(0, 3.0)], "rate 2", is_dashed=True)
    assert dashes_of(line_chart("loss", "loss", [*seeds, dev]))["rate 2, dev"] == DASHED


def test_equal_values_are_drawn_where_they_are() -> None:
    def scale(*values: float) -> Any:
        return line_chart("x", "y", [Curve("a", list(enumerate(values)))]).spec["encoding"]["y"]["scale"]

    assert scale(0.35, 0.35) == {"domain": [pytest.approx(0.315), pytest.approx(0.385)]}
    assert scale(0.0) == {"domain": [-0.5, 0.5]}
    assert scale(0.1, 0.2) == {"zero": False}


def test_residuals_are_single_points_and_the_layer_that_is_zoomed_has_both_axes() -> None:
    chart = point_chart("Residuals", ("true", "error"), [(1.0, 0.25), (2.0, -0.5)])
    points, zero = chart.spec["layer"]
    assert chart.spec["datasets"][points["data"]["name"]] == [{"x": 1.0, "y": 0.25}, {"x": 2.0, "y": -0.5}]
    assert chart.spec["datasets"][zero["data"]["name"]] == [{"y": 0}]
    assert {points["encoding"][axis]["field"] for axis in chart.spec["params"][0]["select"]["encodings"]} == {
        "x",
        "y",
    }
    assert chart.spec["params"][0]["views"] == [points["name"]]


def test_colours_that_come_again_have_another_dash() -> None:
    chart = line_chart("loss", "loss", [Curve(str(k), [(0, float(k)), (1, 1.0)]) for k in range(16)])
    scale = chart.spec["encoding"]["color"]["scale"]
    looks = {
        (colour, tuple(dashes_of(chart)[name]))
        for name, colour in zip(scale["domain"], scale["range"], strict=True)
    }
    assert len(looks) == 16
    assert {dash for _, dash in looks} == {tuple(each) for each in DASHES[:2]}


def test_scores_and_differences_of_all_tasks_have_one_scale() -> None:
    rows = [("a", 0.5, (0.4, 0.6), [0.3]), ("b", 0.9, (), [])]
    scores = interval_chart("scores", "1 is perfect", rows, "same answer", "", (0, 1))
    assert scores.spec["layer"][1]["encoding"]["x"]["scale"]["domain"] == [0, 1]
    assert list(scores.rows) == [("a", 0.5, 0.4, 0.6, 0.3), ("b", 0.9, None, None)]
    assert scores.head == ["name", "value", "low", "high", "same answer"]
    rows = [("a", 1.0, (-1.0, 3.0), [0.5, 1.5]), ("b", -40.0, (-60.0, -20.0), [-41.0, -39.0])]
    found = interval_chart("d", "points", rows, "seed", "")
    assert found.head[-2:] == ["seed 1", "seed 2"]
    expected = ["x", "low", "value", "other"]
    assert [layer["encoding"]["x"]["field"] for layer in found.spec["layer"]] == expected
    assert found.spec["datasets"].keys() == {layer["data"]["name"] for layer in found.spec["layer"]}
    seeds = [values for values in found.spec["datasets"].values() if "other" in values[0]]
    assert [(each["name"], each["other"]) for each in seeds[0]] == [
        ("a", 0.5),
        ("a", 1.5),
        ("b", -41.0),
        ("b", -39.0),
    ]
