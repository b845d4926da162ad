"""Ranking metrics: reciprocal rank, normalized discounted cumulative gain and recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
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


@lru_cache(maxsize=1024)
def _random_ranks(candidates: int, relevant: int) -> tuple[float, float]:
    """Return the expected `mrr`, and the expected discounted gain per mean gain, of a random order."""
    ranks = np.arange(1, candidates - relevant + 2)
    # The probability that the first of the relevant candidates is none of the first ranks.
    later = np.cumprod((candidates - relevant - ranks + 1) / (candidates - ranks + 1))
    first = -np.diff(later, prepend=1.0)
    return float((first / ranks).sum()), _discounted(np.ones(candidates))


def random_ranking_scores(relevance: npt.ArrayLike) -> dict[str, float]:
    """Return the expected `ranking_scores` of candidates in random order."""
    gains = np.asarray(relevance, dtype=np.float64)
    candidates, relevant = len(gains), np.count_nonzero(gains)
    if not relevant:
        return ranking_scores(gains, gains)
    mrr, discounted = _random_ranks(candidates, relevant)
    ideal = _discounted(-np.sort(-gains))
    return {
        "mrr": mrr,
        "ndcg_at_10": float(gains.mean()) * discounted / ideal,
        "recall_at_1": 1 / candidates,
        "recall_at_10": min(1.0, DEPTH / candidates),
    }


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]} if found else {}


def _discounted(gains: Floats) -> float:
    """The sum of the first gains, each divided by log2(rank + 1)."""
    first = gains[:DEPTH]
    return float((first / np.log2(np.arange(2, len(first) + 2))).sum())


@METRICS.register("ranking")
class RankingScores(Metric):
    """The means of `ranking_scores` over all queries."""

    needs = ("relevance",)
    main = "mrr"
    baseline_name = "a random order"

    def __init__(self) -> None:
        self._found: list[dict[str, float]] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._found.append(ranking_scores(truth["relevance"], prediction["scores"]))

    def compute(self) -> dict[str, float]:
        return _mean(self._found)

    @classmethod
    def baseline(cls, truths: Sequence[Truth]) -> dict[str, float]:
        return _mean([random_ranking_scores(truth["relevance"]) for truth in truths])


@METRICS.register("retrieval")
class RetrievalScores(Metric):
    """The means of `ranking_scores` over all distinct `text_a`, each of which ranks all distinct `text_b`.

    The texts of its own rows are relevant; the score is the cosine.
    """

    needs = ("pair",)
    main = "mrr"
    baseline_name = "a random order"

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

    @classmethod
    def baseline(cls, truths: Sequence[Truth]) -> dict[str, float]:
        pairs = {truth["pair"] for truth in truths}
        texts = len({text for _, text in pairs})
        relevant = Counter(query for query, _ in pairs)
        return _mean([random_ranking_scores(np.arange(texts) < own) for own in relevant.values()])


@METRICS.register("pair_accuracy")
class PairAccuracy(Mean):
    """The fraction of pairs in which the right text has the higher score; a tie is wrong.

    Every right text is followed by its wrong one, in the order of the pairwise reader.
    """

    needs = ("is_right",)
    main = "pair_accuracy"
    examples_per_unit = 2
    baseline_name = "a random order"

    _score = 0.0

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:
        if not truth["is_right"]:
            return [self._score > prediction["probs"]]
        self._score = prediction["probs"]
        return []

    @classmethod
    def baseline(cls, truths: Sequence[Truth]) -> dict[str, float]:  # noqa: ARG003 - one of two, whatever they are
        return {cls.main: 0.5}
