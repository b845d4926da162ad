"""Metrics of sequence labelling: whole entities, and single labels."""

from __future__ import annotations

from typing import ClassVar

from palm.metrics.base import METRICS, Metric, Prediction, Truth
from palm.metrics.entities import entities, share


@METRICS.register("entity_f1")
class EntityF1(Metric):
    """Precision, recall and F1 of entities that are found exactly, as `seqeval` counts."""

    needs: ClassVar[tuple[str, ...]] = ("labels",)
    main = "entity_f1"

    def __init__(self) -> None:
        self._right = self._found = self._expected = 0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        found, expected = entities(prediction["labels"]), entities(truth["labels"])
        self._right += len({*found} & {*expected})
        self._found += len(found)
        self._expected += len(expected)

    def compute(self) -> dict[str, float]:
        return {
            "entity_f1": share(2 * self._right, self._found + self._expected),
            "entity_precision": share(self._right, self._found),
            "entity_recall": share(self._right, self._expected),
        }


@METRICS.register("token_accuracy")
class TokenAccuracy(Metric):
    """The share of words with the right label, `O` included; PaddlePALM's pages call it F1."""

    needs: ClassVar[tuple[str, ...]] = ("labels",)
    main = "token_accuracy"

    def __init__(self) -> None:
        self._right = self._words = 0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        pairs = zip(prediction["labels"], truth["labels"], strict=True)
        self._right += sum(ours == true for ours, true in pairs)
        self._words += len(truth["labels"])

    def compute(self) -> dict[str, float]:
        return {"token_accuracy": share(self._right, self._words)}
