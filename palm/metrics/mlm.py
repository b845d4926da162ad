"""How well hidden words are guessed: perplexity, and the share of right guesses."""

from __future__ import annotations

import math
from typing import ClassVar

from palm.metrics.base import METRICS, Metric, Prediction, Truth


@METRICS.register("perplexity")
class Perplexity(Metric):
    """e to the mean negative log-likelihood of the hidden words; 1 is perfect."""

    needs: ClassVar[tuple[str, ...]] = ("words",)
    main = "perplexity"
    higher_is_better = False

    def __init__(self) -> None:
        self._total, self._words = 0.0, 0

    def update(self, prediction: Prediction, truth: Truth) -> None:  # noqa: ARG002 - the record has the words
        self._total -= math.fsum(word["log_prob"] for word in prediction["words"])
        self._words += len(prediction["words"])

    def compute(self) -> dict[str, float]:
        return {"perplexity": math.exp(self._total / self._words) if self._words else math.nan}


@METRICS.register("word_accuracy")
class WordAccuracy(Metric):
    """The share of hidden words that are guessed."""

    needs: ClassVar[tuple[str, ...]] = ("words",)
    main = "word_accuracy"

    def __init__(self) -> None:
        self._right = self._words = 0

    def update(self, prediction: Prediction, truth: Truth) -> None:  # noqa: ARG002 - the record has the words
        self._right += sum(word["word"] == word["predicted"] for word in prediction["words"])
        self._words += len(prediction["words"])

    def compute(self) -> dict[str, float]:
        return {"word_accuracy": self._right / self._words if self._words else math.nan}
