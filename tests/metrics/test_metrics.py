"""Scores, worked out by hand."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.shared import GOLDEN
from palm.metrics import METRICS, calibration_error, scores_of, squad_scores
from palm.metrics.base import baseline_scores
from palm.metrics.classification import BINS
from palm.metrics.ranking import random_ranking_scores, ranking_scores
from palm.metrics.resampling import Pair, score_intervals, share_interval
from palm.train.callbacks import ScoredRows
from palm.train.verdict import Verdict


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    answers = {
        "a": ["the Red Door"],
        "b": ["1900", "the year 1900"],
        "c": ["in the old town"],
        "d": ["Anna"],
        "e": ["nobody"],
    }
    qas = [
        {"id": key, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in texts]}
        for key, texts in answers.items()
    ]
    path = tmp_path / "dev.json"
    data = {"data": [{"title": "", "paragraphs": [{"context": "", "qas": qas}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_case_punctuation_and_articles_do_not_count_and_the_best_answer_does(dev: Path) -> None:
    predictions = {"a": "red door.", "b": "the year 1900", "c": "town", "d": "Bert"}
    scores = squad_scores(predictions, dev)
    # a and b are exact; c shares 1 word of 1 and 3: F1 = 2·1·(1/3)/(1 + 1/3) = 0.5; d and e share none.
    assert scores == {"exact_match": 40.0, "f1": 50.0, "total": 5}


def test_the_deviance_of_a_mean_that_underflowed_is_finite() -> None:
    metric = METRICS["poisson_deviance"]()
    metric.update({"value": 0.0}, {"value": 3})
    assert 100 < metric.compute()["poisson_deviance"] < 1000


def test_the_calibration_error_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        probs = rng.integers(0, 31, 40) / 30  # some on the borders of ranges
        right = rng.random(40) < probs
        expected = 0.0
        for k in range(BINS):
            here = (probs > k / BINS) & (probs <= (k + 1) / BINS) | ((k == 0) & (probs == 0))
            if here.any():
                expected += here.mean() * abs(probs[here].mean() - right[here].mean())
        assert calibration_error(probs.tolist(), right.tolist()) == pytest.approx(expected)


# Scores without any knowledge of the texts, worked out by hand or over all orders.


def baseline(metrics: str, field: str, *truths: Any) -> dict[str, float]:
    return baseline_scores([METRICS[name] for name in metrics.split()], [{field: each} for each in truths])


@pytest.mark.parametrize("relevance", [[0, 1, 0, 0], [2, 0, 1, 0, 1], [3], [1, 1], [0, 0]])
def test_a_random_order_has_the_mean_scores_of_all_orders(relevance: list[int]) -> None:
    found = [ranking_scores(relevance, order) for order in permutations(range(len(relevance)))]
    means = {name: pytest.approx(np.mean([each[name] for each in found])) for name in found[0]}
    assert random_ranking_scores(relevance) == means


def test_one_of_four_in_random_order_by_hand() -> None:
    assert random_ranking_scores([0, 1, 0, 0]) == {
        "mrr": pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4),
        "ndcg_at_10": pytest.approx((1 + 1 / np.log2(3) + 1 / 2 + 1 / np.log2(5)) / 4),
        "recall_at_1": 0.25,
        "recall_at_10": 1.0,
    }
    assert random_ranking_scores([1] + 39 * [0])["recall_at_10"] == 10 / 40


def test_every_query_of_a_retrieval_ranks_all_texts() -> None:
    # Three texts; one query has two of them, the other has one: 1 / rank is 1, 1 and 1/2, or 1, 1/2 and 1/3.
    found = baseline("retrieval", "pair", ("q", "a"), ("q", "b"), ("p", "c"), ("p", "c"))
    assert found["mrr"] == pytest.approx(((2 * 1 + 1 / 2) / 3 + (1 + 1 / 2 + 1 / 3) / 3) / 2)
    assert found["recall_at_1"] == pytest.approx(1 / 3)


def test_constant_answers_by_hand() -> None:
    expected = {"accuracy": 0.75, "macro_f1": pytest.approx(2 * 3 / (4 + 3) / 2), "mcc": 0.0}
    assert baseline("accuracy macro_f1 mcc ece", "label", 3, 3, 3, 7) == expected
    assert baseline("mse spearman", "value", 1.0, 2.0, 6.0) == {"mse": pytest.approx(14 / 3), "spearman": 0.0}
    # Label 0 alone has 2 * 5 / (7 + 9), both have 2 * 9 / (2 * 7 + 9): more, though no text has both but one.
    sets = [[0], [0], [0], [0], [1], [1], [1, 0]]
    assert baseline("label_f1 exact_match lrap", "label_set", *sets) == {
        "micro_f1": pytest.approx(16 / 22),
        "macro_f1": pytest.approx((10 / 12 + 6 / 10) / 2),
        "exact_match": pytest.approx(4 / 7),
        "lrap": pytest.approx((4 * 1 + 2 * 1 / 2 + 1) / 7),  # label 1 is second
    }
    answers = [[], [], ["a door"]]
    assert baseline("squad2", "answers", *answers)["f1"] == pytest.approx(200 / 3)
    assert baseline("pair_accuracy", "is_right", True, False) == {"pair_accuracy": 0.5}
    assert baseline("perplexity", "words", []) == {}


def test_an_answer_that_finds_nothing_is_no_baseline_of_a_model_that_finds_something() -> None:
    tags = [["O", "O", "B-x"], ["O"]]
    found = baseline("entity_f1 token_accuracy", "labels", *tags)
    assert (found["entity_f1"], found["token_accuracy"]) == (0.0, 0.75)
    assert baseline("span_f1", "spans", [{"label": "x", "start": 0, "end": 1}])["span_f1"] == 0.0
    some, none = (Verdict("t", "entity_f1", score, rows=ScoredRows(2, found)) for score in (0.1, 0.0))
    assert (some.baseline, some.beside, some.is_above_nothing) == (None, "", True)
    assert (none.baseline, none.beside, none.is_above_nothing) == (0.0, "not better", False)
    words = Verdict("t", "token_accuracy", 0.8, rows=ScoredRows(2, found))
    assert (words.baseline, words.beside) == (0.75, "better")


# Intervals of scores, with the rows as a sample.


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


def test_the_interval_of_a_mean_f1_is_that_of_all_possible_resamples() -> None:
    rows = [(0, 0), (0, 0), (0, 0), (1, 0), (1, 1), (0, 1)]  # predicted, true
    by_hand = []
    for drawn in product(rows, repeat=6):  # 46,656 equally likely ones
        counts = Counter(drawn)
        seen = Counter(label for pair in drawn for label in pair)
        f1 = [2 * counts[label, label] / number for label, number in seen.items()]
        by_hand.append(sum(f1) / len(f1))
    ends = np.percentile(by_hand, (2.5, 97.5)) + (3 / 4 + 1 / 2) / 2 - np.mean(by_hand)
    pairs: list[Pair] = [({"label": guess}, {"label": true}) for guess, true in rows]
    for quick in (True, False):
        found = score_intervals(METRICS["macro_f1"], pairs, quick)["macro_f1"]
        assert found == pytest.approx(ends.clip(0, 1), abs=0.02)


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


# Answers are counted as the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 count them.


NAMES = ["squad", "squad2", "cmrc"]


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / "metrics" / f"{name}.json").read_text(encoding="utf-8"))
    return data


def scored(name: str, cases: list[dict[str, Any]]) -> dict[str, float]:
    """Our numbers; `null_odds` are given where they were recorded."""
    pairs = [
        (
            {"text": case["prediction"]} | {key: case[key] for key in ("null_odds",) if key in case},
            {"answers": case["answers"]},
        )
        for case in cases
    ]
    return scores_of([METRICS[name]], pairs)


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_scores_as_in_the_official_script(name: str) -> None:
    cases = recorded(name)["cases"]
    assert len(cases) >= 300
    for case in cases:
        ours = scored(name, [case])
        expected = {key: pytest.approx(100 * case[key], abs=1e-9) for key in ("exact_match", "f1")}
        assert {key: ours[key] for key in expected} == expected, case


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_file_scores_as_in_the_official_script(name: str) -> None:
    data = recorded(name)
    assert scored(name, data["cases"]) == pytest.approx(data["all"], abs=1e-9)
