"""Metrics of texts with several labels: F1, exact match, and precision of the labels' ranking."""

from __future__ import annotations

import numpy as np

from palm.metrics.base import METRICS, Mean, Prediction, Truth
from palm.metrics.classification import LabelCounts


@METRICS.register("label_f1")
class LabelF1(LabelCounts):
    """F1 of all labels counted together (micro), and the mean of the labels' F1 (macro).

    The mean includes the labels that are predicted or true at least once.
    """

    needs = ("label_set",)
    main = "micro_f1"

    def update(self, prediction: Prediction, truth: Truth) -> None:
        predicted = {*prediction["labels"]}
        true = {*truth["label_set"]}
        self.count(predicted, true, predicted & true)

    def compute(self) -> dict[str, float]:
        return {"micro_f1": self.scores()[2], "macro_f1": self.mean_f1()}


@METRICS.register("exact_match")
class ExactMatch(Mean):
    """The fraction of texts whose predicted labels are exactly the true ones."""

    needs = ("label_set",)
    main = "exact_match"

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:
        return [{*prediction["labels"]} == {*truth["label_set"]}]


@METRICS.register("lrap")
class RankingPrecision(Mean):
    """Label ranking average precision: the fraction of labels ranked above a true label that are true too.

    Equal probabilities share the lowest rank; a text with no labels, or with all of them, counts as 1.

    Source: Tsoumakas et al., 2010, "Mining multi-label data", as scikit-learn computes it.
    """

    needs = ("label_set",)
    main = "lrap"

    def terms(self, prediction: Prediction, truth: Truth) -> list[float]:
        probs = np.asarray(prediction["probs"])
        true = np.asarray(truth["label_set"], dtype=np.int64)
        above = probs >= probs[true, None]  # [true labels, labels]
        precisions = above[:, true].sum(1) / above.sum(1)
        return [float(precisions.mean()) if len(true) else 1.0]
