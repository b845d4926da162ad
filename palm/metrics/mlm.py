"""Metrics of masked language models: perplexity and the accuracy of predicted words."""

from __future__ import annotations

import math

from palm.metrics.base import METRICS, Mean, Prediction, Truth


@METRICS.register("perplexity")
class Perplexity(Mean):
    """The exponential of the mean negative log-likelihood of the masked words; 1 is perfect."""

    needs = ("words",)
    main = "perplexity"
    higher_is_better = False

    def terms(self, prediction: Prediction, truth: Truth) -> list[float]:  # noqa: ARG002 - the record has the words
        return [-word["log_prob"] for word in prediction["words"]]

    def compute(self) -> dict[str, float]:
        return {self.main: math.exp(super().compute()[self.main])}


@METRICS.register("word_accuracy")
class WordAccuracy(Mean):
    """The fraction of masked words that are predicted correctly."""

    needs = ("words",)
    main = "word_accuracy"

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:  # noqa: ARG002 - the record has the words
        return [word["word"] == word["predicted"] for word in prediction["words"]]
