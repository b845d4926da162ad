"""Ranking metrics: reciprocal rank, normalized discounted cumulative gain and recall."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from palm.metrics.base import METRICS, Mean, Metric, Prediction, Truth
from palm.metrics.regression import Floats

DEPTH = 10
"""The number of ranks that `ndcg_at_10` and `recall_at_10` consider."""

QUERIES = 256
"""Queries whose similarities to all texts are in memory at a time."""


def ranking_scores(relevance: npt.ArrayLike, scores: npt.ArrayLike) -> dict[str, float]:
    """Score one ranking; candidates with a relevance above 0 are relevant.

    Args:
        relevance: the relevance of every candidate, 0 or more.
        scores: the score of every candidate.

    Returns:
        `mrr`, 1 / the rank of the first relevant candidate; `ndcg_at_10`; `recall_at_1` and `recall_at_10`,
        the fraction of relevant candidates up to that rank. Candidates with equal scores share the last of
        their ranks, and the mean of their gains. All are 0 if no candidate is relevant.

    Source: Jarvelin and Kekalainen, 2002, "Cumulated gain-based evaluation of IR techniques"; McSherry and
    Najork, 2008, "Computing information retrieval performance measures efficiently in the presence of tied
    scores".
    """
    gains = np.asarray(relevance, dtype=np.float64)
    # Equal scores form a group, and each of its members has the last rank of the group.
    values, which, counts = np.unique(-np.asarray(scores), return_inverse=True, return_counts=True)
    if not gains.any():
        return dict.fromkeys(("mrr", "ndcg_at_10", "recall_at_1", "recall_at_10"), 0.0)
    relevant = counts.cumsum()[which][gains > 0]
    means = np.bincount(which, gains, len(values)) / counts
    return {
        "mrr": float(1 / relevant.min()),
        "ndcg_at_10": _discounted(np.repeat(means, counts)) / _discounted(-np.sort(-gains)),
        "recall_at_1": float((relevant <= 1).mean()),
        "recall_at_10": float((relevant <= DEPTH).mean()),
    }


def _discounted(gains: Floats) -> float:
    """The sum of the first gains, each divided by log2(rank + 1)."""
    first = gains[:DEPTH]
    return float((first / np.log2(np.arange(2, len(first) + 2))).sum())


@METRICS.register("ranking")
class RankingScores(Metric):
    """The means of `ranking_scores` over all queries."""

    needs = ("relevance",)
    main = "mrr"

    def __init__(self) -> None:
        self._found: list[dict[str, float]] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._found.append(ranking_scores(truth["relevance"], prediction["scores"]))

    def compute(self) -> dict[str, float]:
        return {name: float(np.mean([each[name] for each in self._found])) for name in self._found[0]}


@METRICS.register("retrieval")
class RetrievalScores(Metric):
    """The means of `ranking_scores` over all distinct `text_a`, each of which ranks all distinct `text_b`.

    The texts of its own rows are relevant; the score is the cosine.
    """

    needs = ("pair",)
    main = "mrr"

    def __init__(self) -> None:
        self._queries: dict[str, Any] = {}
        self._texts: dict[str, Any] = {}
        self._pairs: dict[str, set[str]] = {}

    def update(self, prediction: Prediction, truth: Truth) -> None:
        query, text = truth["pair"]
        self._queries.setdefault(query, np.asarray(prediction["embedding"], dtype=np.float32))
        self._texts.setdefault(text, np.asarray(prediction["embedding_b"], dtype=np.float32))
        self._pairs.setdefault(query, set()).add(text)

    def compute(self) -> dict[str, float]:
        counting = RankingScores()
        places = {text: place for place, text in enumerate(self._texts)}
        texts = np.stack([*self._texts.values()])
        queries = [*self._queries]
        # A block of queries at a time, because the whole matrix grows with the square of the rows.
        for start in range(0, len(queries), QUERIES):
            some = queries[start : start + QUERIES]
            for query, scores in zip(some, np.stack([self._queries[q] for q in some]) @ texts.T, strict=True):
                relevance = np.zeros(len(texts))
                relevance[[places[text] for text in self._pairs[query]]] = 1
                counting.update({"scores": scores}, {"relevance": relevance})
        return counting.compute()


@METRICS.register("pair_accuracy")
class PairAccuracy(Mean):
    """The fraction of pairs in which the right text has the higher score; a tie is wrong.

    Every right text is followed by its wrong one, in the order of the pairwise reader.
    """

    needs = ("is_right",)
    main = "pair_accuracy"
    examples_per_unit = 2

    _score = 0.0

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:
        if not truth["is_right"]:
            return [self._score > prediction["probs"]]
        self._score = prediction["probs"]
        return []
