"""Classification metrics: accuracy, micro and macro F1, Matthews' correlation, weighted kappa."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from palm.metrics.base import METRICS, Metric, Prediction, Truth


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
