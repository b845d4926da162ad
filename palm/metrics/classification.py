"""Metrics of labels and of their probabilities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from palm.metrics.base import METRICS, Mean, Metric, Prediction, Truth, scores_of

BINS = 15
"""Number of probability ranges, all of the same width."""


def calibration_error(probs: Sequence[float], right: Sequence[bool]) -> float:
    """The mean difference between probability and frequency in `BINS` ranges, weighted by number of cases.

    Args:
        probs: the predicted probability of each case.
        right: whether each prediction was right.

    Source: Guo et al., 2017, "On calibration of modern neural networks".
    """
    excess = np.bincount(_ranges(probs), np.asarray(probs) - np.asarray(right, dtype=np.float64))
    return float(np.abs(excess).sum() / max(1, len(probs)))


def reliability(probs: Sequence[float], right: Sequence[bool]) -> list[tuple[float, float, int]]:
    """Mean probability, fraction that is right, and number of predictions in each range of probabilities."""
    ranges = _ranges(probs)
    counts = np.bincount(ranges)
    sums = np.stack([np.bincount(ranges, np.asarray(each, dtype=np.float64)) for each in (probs, right)])
    means = (sums / counts.clip(1)).T[counts > 0]
    numbers = counts[counts > 0].tolist()
    return [(float(prob), float(share), n) for (prob, share), n in zip(means, numbers, strict=True)]


def _ranges(probs: Sequence[float]) -> npt.NDArray[np.int64]:
    return np.ceil(np.asarray(probs, dtype=np.float64) * BINS).clip(1, BINS).astype(np.int64)


@METRICS.register("ece")
class CalibrationError(Metric):
    """Expected calibration error of the predicted label."""

    needs = ("label",)
    main: ClassVar[str] = "ece"
    higher_is_better = False

    def __init__(self) -> None:
        self._probs: list[float] = []
        self._right: list[bool] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._probs.append(max(prediction["probs"]))
        self._right.append(prediction["label"] == truth["label"])

    def compute(self) -> dict[str, float]:
        return {self.main: calibration_error(self._probs, self._right)}

    def curves(self) -> list[tuple[str, list[tuple[float, float, int]]]]:
        """The reliability of the probabilities, by name."""
        return [("predictions", reliability(self._probs, self._right))]


@METRICS.register("label_ece")
class LabelCalibrationError(CalibrationError):
    """Expected calibration error of all labels of all texts."""

    needs = ("label_set",)
    main = "label_ece"

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._probs += prediction["probs"]
        self._right += np.isin(np.arange(len(prediction["probs"])), truth["label_set"]).tolist()


class LabelTally:
    """Counts of how often each label is predicted, is true, and is both.

    Attributes:
        predicted: label -> number of times it is predicted.
        true: label -> number of times it is true.
        right: label -> number of times it is both.
        total: number of examples.
    """

    def __init__(self) -> None:
        self.predicted: Counter[Any] = Counter()
        self.true: Counter[Any] = Counter()
        self.right: Counter[Any] = Counter()
        self.total = 0

    def count(self, predicted: Iterable[Any], true: Iterable[Any], right: Iterable[Any]) -> None:
        """Count the labels of one example."""
        self.predicted.update(predicted)
        self.true.update(true)
        self.right.update(right)
        self.total += 1

    @property
    def labels(self) -> list[Any]:
        """The labels that are predicted or true at least once, sorted."""
        return sorted(self.predicted.keys() | self.true.keys())

    def scores(self, label: Any = None) -> tuple[float, float, float]:
        """Return precision, recall and F1 of one label or of all together; a ratio with divisor 0 is 0."""
        counts = (self.right, self.predicted, self.true)
        right, predicted, true = (each.total() if label is None else each[label] for each in counts)
        pairs = ((right, predicted), (right, true), (2 * right, predicted + true))
        precision, recall, f1 = (part / whole if whole else 0.0 for part, whole in pairs)
        return precision, recall, f1

    def averages(self) -> dict[str, list[float]]:
        """Return precision, recall and F1 of all labels together (micro), and the means over the labels that
        are predicted or true at least once, equally (macro) and by how often they are true (weighted).

        After them come the true and the predicted occurrences of all labels. Empty if there are fewer than
        two labels, or none is true.
        """
        if len(self.labels) < 2 or not self.true.total():
            return {}
        scores = np.array([self.scores(label) for label in self.labels])
        weights = [self.true[label] for label in self.labels]
        means = {
            "micro average": self.scores(),
            "macro average": scores.mean(0).tolist(),
            "weighted average": np.average(scores, axis=0, weights=weights).tolist(),
        }
        totals = self.true.total(), self.predicted.total()
        return {name: [*mean, *totals] for name, mean in means.items()}

    def mean_f1(self) -> float:
        """The mean F1 of the labels that are predicted or true at least once; 0 if there are none."""
        return math.fsum(self.scores(label)[2] for label in self.labels) / max(1, len(self.labels))


class LabelCounts(LabelTally, Metric):
    """Base of metrics that only need the counts of labels."""

    needs = ("label",)

    def update(self, prediction: Prediction, truth: Truth) -> None:
        is_right = prediction["label"] == truth["label"]
        self.count([prediction["label"]], [truth["label"]], [truth["label"]] if is_right else [])


@METRICS.register("accuracy")
class Accuracy(LabelCounts):
    """The fraction of examples with the right label."""

    main = "accuracy"

    def compute(self) -> dict[str, float]:
        return {self.main: self.right.total() / self.total}


@METRICS.register("micro_f1")
class MicroF1(Accuracy):
    """F1 of all classes counted together, which is the accuracy if every text has one label."""

    main = "micro_f1"


@METRICS.register("macro_f1")
class MacroF1(LabelCounts):
    """The mean F1 of the classes that are predicted or true at least once."""

    main = "macro_f1"

    def compute(self) -> dict[str, float]:
        return {"macro_f1": self.mean_f1()}


@METRICS.register("mcc")
class MatthewsCorrelation(LabelCounts):
    """Matthews' correlation coefficient of predicted and true labels, from -1 to 1; 0 is chance.

    It is 0 if all predicted labels, or all true ones, are the same.

    Source: Gorodkin, 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    """

    main = "mcc"
    worst = -1.0

    def compute(self) -> dict[str, float]:
        # Integers until the division, to avoid cancellation on large files.
        by_chance = sum(count * self.true[label] for label, count in self.predicted.items())
        spread_predicted = self.total**2 - sum(n * n for n in self.predicted.values())
        spread_gold = self.total**2 - sum(n * n for n in self.true.values())
        if not spread_predicted or not spread_gold:
            return {"mcc": 0.0}
        covariance = self.right.total() * self.total - by_chance
        return {"mcc": covariance / math.sqrt(spread_predicted * spread_gold)}


@METRICS.register("qwk")
class QuadraticKappa(LabelCounts):
    """Quadratic weighted kappa: agreement beyond chance on ordered labels, from -1 to 1.

    Weights are squared differences of label ids. It is 1 if all labels, predicted and true, are the same.

    Source: Cohen, 1968, "Weighted kappa".
    """

    main = "qwk"
    worst = -1.0

    def __init__(self) -> None:
        super().__init__()
        self._squares = 0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        super().update(prediction, truth)
        self._squares += (prediction["label"] - truth["label"]) ** 2

    def compute(self) -> dict[str, float]:
        by_chance = sum(
            ours * theirs * (label - other) ** 2
            for label, ours in self.predicted.items()
            for other, theirs in self.true.items()
        )
        return {"qwk": 1 - self.total * self._squares / by_chance if by_chance else 1.0}


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

    @classmethod
    def baseline(cls, truths: Sequence[Truth]) -> dict[str, float]:
        """The score of the labels in the order of their frequency, for every text."""
        counts = Counter(label for truth in truths for label in truth["label_set"])
        ranked = {"probs": [counts[label] for label in range(max(counts, default=-1) + 1)]}
        return scores_of([cls], [(ranked, truth) for truth in truths])
