"""Metrics of texts with several labels: F1, exact match, and precision of the labels' ranking."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from palm.metrics.base import METRICS, Metric, Prediction, Truth


@METRICS.register("label_f1")
class LabelF1(Metric):
    """F1 of all labels counted together (micro), and the mean of the labels' F1 (macro).

    A label counts for the mean if it is predicted or true somewhere.
    """

    needs = ("label_set",)
    main = "micro_f1"

    def __init__(self) -> None:
        self._counted: Counter[int] = Counter()  # predicted and true, each once
        self._right: Counter[int] = Counter()

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._counted.update(prediction["labels"])
        self._counted.update(truth["label_set"])
        self._right.update({*prediction["labels"]} & {*truth["label_set"]})

    def compute(self) -> dict[str, float]:
        scores = [2 * self._right[label] / count for label, count in self._counted.items()]
        micro = 2 * self._right.total() / max(1, self._counted.total())
        return {"micro_f1": micro, "macro_f1": math.fsum(scores) / max(1, len(scores))}


@METRICS.register("exact_match")
class ExactMatch(Metric):
    """The fraction of texts whose predicted labels are exactly the true ones."""

    needs = ("label_set",)
    main = "exact_match"

    def __init__(self) -> None:
        self._right = 0
        self._total = 0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._right += {*prediction["labels"]} == {*truth["label_set"]}
        self._total += 1

    def compute(self) -> dict[str, float]:
        return {"exact_match": self._right / self._total}


@METRICS.register("lrap")
class RankingPrecision(Metric):
    """Label ranking average precision: how many of the labels ranked above a true label are true, too.

    Equal probabilities share the lowest rank; a text without labels, or with all of them, counts as 1.

    Source: Tsoumakas et al., 2010, "Mining multi-label data", as scikit-learn computes it.
    """

    needs = ("label_set",)
    main = "lrap"

    def __init__(self) -> None:
        self._scores: list[float] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        probs = np.asarray(prediction["probs"])
        true = np.asarray(truth["label_set"], dtype=np.int64)
        above = probs >= probs[true, None]  # [true labels, labels]
        precisions = above[:, true].sum(1) / above.sum(1)
        self._scores.append(float(precisions.mean()) if len(true) else 1.0)

    def compute(self) -> dict[str, float]:
        return {"lrap": math.fsum(self._scores) / len(self._scores)}
