"""Learning curves: scores against rows, of comparisons made by hand; what is wrong is said before a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers import tiny
from palm.core.errors import ConfigError
from palm.experiments.comparison.curves import LearningCurves, curves_of, learning_curves
from palm.experiments.comparison.outcome import Outcome, Scoring, SeedScores, Trained
from palm.experiments.comparison.variants import Length, Variant

WAYS = {
    "together": Variant("together", "together", ["slot", "mlm"], is_way=True),
    "alone-slot": Variant("alone-slot", "alone", ["slot"]),
    "alone-slot-8-updates": Variant("alone-slot-8-updates", "alone for 8 updates", ["slot"]),
}


def outcome(**means: float) -> Outcome:
    """A comparison with these scores of three seeds."""
    trained = [
        Trained(
            WAYS[name],
            Length(1, {"slot": 4}, 4),
            1.0,
            {"slot": SeedScores.of(mean + np.array([-0.1, 0, 0.1]))},
        )
        for name, mean in ((name.replace("_", "-"), mean) for name, mean in means.items())
    ]
    tests = {"slot": Scoring("test.tsv", "entity_f1", 10, "last", is_dev=False)}
    return Outcome("target", "Equal.", [1, 2, 3], tests, trained, [], {"slot": "a verdict"}, {})


@pytest.fixture
def curves() -> LearningCurves:
    few = outcome(together=0.5, alone_slot=0.3, alone_slot_8_updates=0.4)
    return curves_of({"50": few, "all": outcome(together=0.8, alone_slot=0.7)}, {"slot": 200})


def test_alone_is_the_better_of_its_runs_and_all_rows_are_counted(curves: LearningCurves) -> None:
    means = {
        way: {rows: round(own.mean, 2) for rows, own in points.items()}
        for way, points in curves.curves["slot"].items()
    }
    assert means == {"together": {50: 0.5, 200: 0.8}, "alone": {50: 0.4, 200: 0.7}}


def test_the_table_separates_rows_from_helpers(curves: LearningCurves) -> None:
    (advice,) = (line for line in str(curves).splitlines() if line.startswith("From 50 to 200 rows"))
    assert [number for number in ("+0.3000", "together", "+0.1000") if number not in advice] == []
    assert "0.5000 (0.2516 to 0.7484)" in str(curves)


def test_each_way_is_drawn_between_the_ends_of_its_interval(curves: LearningCurves) -> None:
    (chart,) = curves.charts()
    together = [line.curve.points for line in chart.lines if line.colour == 0]
    assert np.allclose(together[0], [(50, 0.2516), (200, 0.5516)], atol=1e-4)
    assert np.allclose(together[2], [(50, 0.5), (200, 0.8)])
    assert chart.columns == ["training rows", "together", "alone"]


def test_what_is_not_a_number_of_rows_is_refused(tmp_path: Path) -> None:
    given = tiny.config(tiny.write_files(tmp_path), "cls", "match")
    with pytest.raises(ConfigError, match=r"rows .*0, few"):
        learning_curves(given, rows=["all", "0", "few"])
