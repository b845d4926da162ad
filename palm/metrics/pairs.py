"""The metric of a ranking of pairs: how often the right text is above the wrong one."""

from __future__ import annotations

from palm.metrics.base import METRICS, Mean, Prediction, Truth


@METRICS.register("pair_accuracy")
class PairAccuracy(Mean):
    """The fraction of pairwise examples whose right text has the higher score; a tie is wrong.

    Examples come in the order of the reader of pairs: each right text, then its wrong one.
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
