"""Scores without any knowledge of the texts, worked out by hand or over all orders."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from palm.metrics import METRICS
from palm.metrics.base import baseline_scores
from palm.metrics.ranking import random_ranking_scores, ranking_scores
from palm.train.callbacks import ScoredRows
from palm.train.verdict import Verdict


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
    assert baseline("accuracy macro_f1 mcc ece", "label", 3, 3, 3, 7) == {
        "accuracy": 0.75,
        "macro_f1": pytest.approx(2 * 3 / (4 + 3) / 2),
        "mcc": 0.0,
    }
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
