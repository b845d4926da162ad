"""Intervals of scores, with the rows as a sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from palm.metrics import METRICS
from palm.metrics.base import scores_of
from palm.metrics.resampling import Pair, score_intervals, share_interval


def labels(right: int, wrong: int) -> list[Pair]:
    return [({"label": int(row < right)}, {"label": 1}) for row in range(right + wrong)]


def test_a_share_of_rows_has_wilsons_interval() -> None:
    assert share_interval(0.75, 40) == pytest.approx((0.5981, 0.8581), abs=1e-3)
    assert score_intervals(METRICS["accuracy"], labels(30, 10)) == {"accuracy": share_interval(0.75, 40)}
    low, high = score_intervals(METRICS["accuracy"], labels(40, 0))["accuracy"]
    assert (low, high) == pytest.approx((0.912, 1.0), abs=1e-3)


def test_a_score_in_percent_has_its_interval_in_percent() -> None:
    pairs = [({"text": "a" if row < 30 else "b"}, {"id": str(row), "answers": ["a"]}) for row in range(40)]
    found = score_intervals(METRICS["squad"], pairs)
    assert found["exact_match"] == pytest.approx((59.81, 85.81), abs=0.1)


def test_a_mean_of_numbers_has_the_interval_of_its_standard_error() -> None:
    errors = np.random.default_rng(1).normal(0, 1, 400)
    pairs = [({"value": float(error)}, {"value": 0.0}) for error in errors]
    low, high = score_intervals(METRICS["mse"], pairs)["mse"]
    squares = errors**2
    half = 1.96 * squares.std() / math.sqrt(400)
    assert (low, high) == pytest.approx((squares.mean() - half, squares.mean() + half), abs=0.04)


def test_labels_that_resamples_lack_do_not_shift_the_interval_of_their_mean() -> None:
    # Ten rare labels are never right: a resample without some of them has a higher mean F1 than the rows.
    pairs = [({"label": 0}, {"label": 0}) for _ in range(60)]
    pairs += [({"label": 0}, {"label": 1 + row % 10}) for row in range(20)]
    (value,) = scores_of([METRICS["macro_f1"]], pairs).values()
    assert value == pytest.approx(2 * 60 / (80 + 60) / 11)
    low, high = score_intervals(METRICS["macro_f1"], pairs)["macro_f1"]
    assert low < 0.97 * value < 1.03 * value < high
    quick = score_intervals(METRICS["macro_f1"], pairs, quick=True)["macro_f1"]
    assert quick == pytest.approx((low, high), rel=0.1)


def test_an_f1_score_has_the_interval_of_its_resamples() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 3, 300)
    guess = np.where(rng.random(300) < 0.8, truth, rng.integers(0, 3, 300))
    pairs: list[Pair] = [({"label": int(g)}, {"label": int(t)}) for g, t in zip(guess, truth, strict=True)]
    low, high = score_intervals(METRICS["macro_f1"], pairs)["macro_f1"]
    resampled = []
    for _ in range(1000):
        drawn = rng.integers(0, 300, 300)
        metric = METRICS["macro_f1"]()
        for row in drawn:
            metric.update(*pairs[row])
        resampled.append(metric.compute()["macro_f1"])
    assert (low, high) == pytest.approx(np.percentile(resampled, (2.5, 97.5)), abs=0.015)


def test_a_score_that_no_resample_changes_has_none() -> None:
    assert score_intervals(METRICS["mse"], [({"value": 0.5}, {"value": 0.0})] * 40) == {}
