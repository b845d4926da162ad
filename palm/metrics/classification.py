"""How good labels are: accuracy, F1 of the classes, Matthews' correlation."""

from __future__ import annotations

import math
from collections import Counter
from typing import ClassVar

from palm.metrics.base import METRICS, Metric, Prediction, Truth


class Confusion(Metric):
    """Base of metrics that need no more than how often each label was given for each.

    Attributes:
        counts: (predicted label, true label) -> number of examples.
    """

    needs: ClassVar[tuple[str, ...]] = ("label",)

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self.counts[prediction["label"], truth["label"]] += 1

    @property
    def right(self) -> Counter[int]:
        """Label -> examples that rightly have it."""
        return Counter({true: n for (ours, true), n in self.counts.items() if ours == true})

    def marginal(self, side: int) -> Counter[int]:
        """Label -> examples for which it was predicted (side 0), or is true (side 1)."""
        found: Counter[int] = Counter()
        for pair, n in self.counts.items():
            found[pair[side]] += n
        return found


@METRICS.register("accuracy")
class Accuracy(Confusion):
    """The share of examples with the right label."""

    main = "accuracy"

    def compute(self) -> dict[str, float]:
        return {"accuracy": self.right.total() / self.counts.total()}


@METRICS.register("micro_f1")
class MicroF1(Confusion):
    """F1 of all classes counted together; where every text has one label, it is the accuracy."""

    main = "micro_f1"

    def compute(self) -> dict[str, float]:
        given, true = self.marginal(0).total(), self.marginal(1).total()
        return {"micro_f1": 2 * self.right.total() / (given + true)}


@METRICS.register("macro_f1")
class MacroF1(Confusion):
    """The mean over classes of their F1; a class counts if it is predicted or true somewhere."""

    main = "macro_f1"

    def compute(self) -> dict[str, float]:
        right, given, true = self.right, self.marginal(0), self.marginal(1)
        labels = given.keys() | true.keys()
        scores = [2 * right[label] / (given[label] + true[label]) for label in sorted(labels)]
        return {"macro_f1": math.fsum(scores) / len(scores)}


@METRICS.register("mcc")
class MatthewsCorrelation(Confusion):
    """Matthews' correlation coefficient of predicted and true labels, from -1 to 1; 0 is chance.

    Source: Gorodkin, 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient"; 0 where all labels, predicted or true, are the same.
    """

    main = "mcc"

    def compute(self) -> dict[str, float]:
        given, true, total = self.marginal(0), self.marginal(1), self.counts.total()
        together = sum(given[label] * true[label] for label in given)
        spread_given = total**2 - sum(n * n for n in given.values())
        spread_true = total**2 - sum(n * n for n in true.values())
        if not spread_given or not spread_true:
            return {"mcc": 0.0}
        covariance = self.right.total() * total - together
        return {"mcc": covariance / math.sqrt(spread_given * spread_true)}
