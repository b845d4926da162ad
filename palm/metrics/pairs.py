"""The metric of pairwise ranking: how often the right text is ranked above the wrong one."""

from __future__ import annotations

from palm.metrics.base import METRICS, Mean, Prediction, Truth


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
