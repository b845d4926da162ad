"""The statistics of a comparison: known formulas, scipy, simulated comparisons of equal ways of training."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from palm.experiments.statistics import Difference, holm, more_seeds, paired_difference, t_quantile, t_tail
from palm.metrics import METRICS
from palm.metrics.resampling import resampled_scores

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from compare_null import Scene, simulated


def test_the_t_distribution_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats", reason="the extra judges is not installed")
    for freedom in (1, 2, 4, 9, 30, 999):
        for value in (0.0, 0.5, 1.96, 2.776, 8.0, 40.0):
            assert t_tail(value, freedom) == pytest.approx(stats.t.sf(value, freedom), abs=1e-9)
        for share in (0.9, 0.975, 0.999):
            assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-6)


def test_more_seeds_are_the_fewest_whose_t_test_would_decide() -> None:
    stats = pytest.importorskip("scipy.stats", reason="the extra judges is not installed")

    def p_value(mean: float, deviation: float, of_rows: float, seeds: int) -> float:
        error = np.sqrt(deviation**2 / seeds + of_rows**2)
        return float(2 * stats.t.sf(abs(mean) / error, seeds - 1))

    for mean, deviation, of_rows in [(-40.0, 30.0, 5.0), (3.0, 4.0, 0.5), (1.0, 2.0, 0.2)]:
        effect = Difference(mean, 0, deviation / np.sqrt(3), of_rows, 0, 0, 0.1, [mean] * 3)
        expected = next(k for k in range(1, 51) if p_value(mean, deviation, of_rows, 3 + k) < 0.05)
        assert more_seeds(effect, 0.05) == expected
    assert more_seeds(Difference(1.0, 0, 0.1, 0.9, 0, 0, 0.1, [1.0] * 3), 0.05) is None  # too few rows
    assert more_seeds(Difference(0.01, 0, 5.0, 0.0, 0, 0, 0.9, [0.01] * 3), 0.05) is None


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_without_rows_that_vary_it_is_the_paired_t_test() -> None:
    stats = pytest.importorskip("scipy.stats", reason="the extra judges is not installed")
    first, second = np.array([0.91, 0.90, 0.93, 0.92, 0.90]), np.array([0.90, 0.89, 0.90, 0.91, 0.90])
    difference = first - second
    found = paired_difference(difference, np.tile(difference, (50, 1)))
    known = stats.ttest_rel(first, second)
    interval = known.confidence_interval(0.95)
    assert found.p_value == pytest.approx(known.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6)
    assert found.row_error == 0


def test_the_error_of_rows_is_that_of_a_mean_over_rows() -> None:
    """All seeds agree on every row, so what is left is the standard error of a mean of 400 rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(0.1, 1.0, 400)
    weights = rng.multinomial(400, np.full(400, 1 / 400), size=4000) / 400
    resampled = np.repeat((weights @ rows)[:, None], 5, axis=1)
    found = paired_difference(np.full(5, rows.mean()), resampled)
    assert found.standard_error == pytest.approx(rows.std(ddof=1) / 20, rel=0.03)
    assert found.seed_error == 0


def test_at_most_one_of_twenty_comparisons_of_equal_ways_is_called_a_difference() -> None:
    """200 of them, of few and of many rows, of seeds that agree and of seeds that do not."""
    scenes = [Scene(rows, spread) for rows in (200, 500) for spread in (0.0, 0.1, 0.2, 0.3)]
    shares = [simulated(scene, 0.0, 25)["palm"] for scene in scenes]
    assert sum(shares) / len(shares) <= 0.05


def test_a_difference_that_five_seeds_can_show_is_shown() -> None:
    assert simulated(Scene(1000, 0.1), 0.6, 50)["palm"] >= 0.9


LABELS = [["B-a", "I-a", "O"], ["O", "B-b", "O"], ["O", "O", "O"], ["B-b", "B-a", "I-a"]]
TRUE = [["B-a", "I-a", "O"], ["B-b", "I-b", "O"], ["O", "O", "B-a"], ["B-b", "B-a", "O"]]
ANSWERS = ["the old cat", "dog", "", "a red door"]
CASES = {
    "accuracy": [({"label": a}, {"label": b}) for a, b in [(0, 0), (1, 0), (2, 2), (1, 1)]],
    "macro_f1": [({"label": a}, {"label": b}) for a, b in [(0, 0), (1, 0), (2, 2), (1, 1)]],
    "mcc": [({"label": a}, {"label": b}) for a, b in [(0, 0), (1, 0), (2, 2), (1, 1)]],
    "entity_f1": [({"labels": a}, {"labels": b}) for a, b in zip(LABELS, TRUE, strict=True)],
    "token_accuracy": [({"labels": a}, {"labels": b}) for a, b in zip(LABELS, TRUE, strict=True)],
    "squad": [({"text": a}, {"answers": ["old cat", "red door"]}) for a in ANSWERS],
    "squad2": [({"text": a}, {"answers": ["old cat", "red door"]}) for a in ANSWERS],
    "cmrc": [({"text": a}, {"answers": ["old cat", "red door"]}) for a in ANSWERS],
    "spearman": [({"value": a}, {"value": b}) for a, b in [(0.1, 1.0), (0.5, 3.0), (0.4, 2.0), (0.9, 2.5)]],
    "mse": [({"value": a}, {"value": b}) for a, b in [(0.1, 1.0), (0.5, 3.0), (0.4, 2.0), (0.9, 2.5)]],
    "pair_accuracy": [
        ({"probs": p}, {"is_right": right})
        for p, right in [(0.9, True), (0.1, False), (0.3, True), (0.6, False)]
    ],
    "perplexity": [({"words": [{"log_prob": -a}]}, {"words": []}) for a in (0.1, 1.0, 2.0, 0.3)],
}


@pytest.mark.parametrize("name", CASES)
def test_a_metric_of_resampled_rows_is_that_of_the_rows_repeated(name: str) -> None:
    metric, pairs = METRICS[name], CASES[name]
    whole, resampled = resampled_scores(metric, [pairs, pairs[::-1]], 40, np.random.default_rng(3))
    units = len(pairs) // metric.examples_per_unit
    weights = np.random.default_rng(3).multinomial(units, np.full(units, 1 / units), size=40)
    for row, drawn in zip(resampled[:, 0], weights, strict=True):
        counting = metric()
        for place in np.repeat(np.arange(units), drawn):
            for pair in pairs[place * metric.examples_per_unit : (place + 1) * metric.examples_per_unit]:
                counting.update(*pair)
        assert row == pytest.approx(counting.compute()[metric.main], nan_ok=True)
    counting = metric()
    for pair in pairs:
        counting.update(*pair)
    assert whole[0] == pytest.approx(counting.compute()[metric.main])
