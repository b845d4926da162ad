"""The metric of a ranking of pairs: how often the right text is above the wrong one."""

from __future__ import annotations

from palm.metrics.base import METRICS, Metric, Prediction, Truth


@METRICS.register("pair_accuracy")
class PairAccuracy(Metric):
    """The fraction of pairwise examples whose right text has the higher score; a tie is wrong.

    Examples come in the order of the reader of pairs: each right text, then its wrong one.
    """

    needs = ("is_right",)
    main = "pair_accuracy"
    examples_per_unit = 2

    def __init__(self) -> None:
        self.right = 0
        self.total = 0
        self._score = 0.0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        if truth["is_right"]:
            self._score = prediction["probs"]
            return
        self.total += 1
        self.right += self._score > prediction["probs"]

    def compute(self) -> dict[str, float]:
        return {"pair_accuracy": self.right / self.total}
