"""Metrics of masked language models: perplexity, and the fraction of right guesses."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from palm.metrics.base import METRICS, Metric, Prediction, Truth


class PerMaskedWord(Metric):
    """Base of metrics that are a mean over masked words, which the records themselves have."""

    needs = ("words",)

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @abstractmethod
    def term(self, word: Mapping[str, Any]) -> float:
        """The term of one word of a record in the mean."""

    def update(self, prediction: Prediction, truth: Truth) -> None:  # noqa: ARG002 - the record has the words
        self._sum += math.fsum(self.term(word) for word in prediction["words"])
        self._count += len(prediction["words"])

    def mean(self) -> float:
        """The mean over all words; not a number where there are none."""
        return self._sum / self._count if self._count else math.nan

    def compute(self) -> dict[str, float]:
        return {self.main: self.mean()}


@METRICS.register("perplexity")
class Perplexity(PerMaskedWord):
    """e to the mean negative log-likelihood of the masked words; 1 is perfect."""

    main = "perplexity"
    higher_is_better = False

    def term(self, word: Mapping[str, Any]) -> float:
        return -float(word["log_prob"])

    def compute(self) -> dict[str, float]:
        return {"perplexity": math.exp(self.mean())}


@METRICS.register("word_accuracy")
class WordAccuracy(PerMaskedWord):
    """The fraction of masked words that are guessed."""

    main = "word_accuracy"

    def term(self, word: Mapping[str, Any]) -> float:
        return float(word["word"] == word["predicted"])
