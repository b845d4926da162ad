"""Expected calibration error: the gap between predicted probabilities and observed frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from palm.core.errors import ConfigError
from palm.metrics.base import METRICS, Metric, Prediction, Truth

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


def reliability(probs: Sequence[float], right: Sequence[bool]) -> list[tuple[float, float]]:
    """The mean probability and the fraction of right predictions in each range of `calibration_error`."""
    ranges = _ranges(probs)
    counts = np.bincount(ranges)
    sums = np.stack([np.bincount(ranges, np.asarray(each, dtype=np.float64)) for each in (probs, right)])
    means = (sums / counts.clip(1)).T[counts > 0]
    return [(float(prob), float(share)) for prob, share in means]


def _ranges(probs: Sequence[float]) -> npt.NDArray[np.int64]:
    return np.ceil(np.asarray(probs, dtype=np.float64) * BINS).clip(1, BINS).astype(np.int64)


def highest_probs(logits: npt.ArrayLike) -> list[float]:
    """The highest softmax probability in each row of logits, [rows, labels]."""
    logits = np.asarray(logits)
    probs: list[float] = (1 / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)).tolist()
    return probs


@METRICS.register("ece")
class CalibrationError(Metric):
    """Expected calibration error of the predicted label, with and without temperature (`ece_before`)."""

    needs = ("label",)
    main: ClassVar[str] = "ece"
    higher_is_better = False

    def __init__(self) -> None:
        self._probs: list[float] = []
        self._before: list[float] = []
        self._right: list[bool] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._probs.append(max(prediction["probs"]))
        self._before += highest_probs([prediction["logits"]])
        self._right.append(prediction["label"] == truth["label"])

    def compute(self) -> dict[str, float]:
        found = (calibration_error(probs, self._right) for probs in (self._probs, self._before))
        return dict(zip((self.main, f"{self.main}_before"), found, strict=True))

    def curves(self) -> list[tuple[str, list[tuple[float, float]]]]:
        """The reliability of the probabilities, and of those without temperature if they differ."""
        found = [("predictions", reliability(self._probs, self._right))]
        if not np.allclose(self._probs, self._before, atol=1e-5):
            found.append(("without temperature", reliability(self._before, self._right)))
        return found


@METRICS.register("label_ece")
class LabelCalibrationError(CalibrationError):
    """Expected calibration error of all labels of all texts, with and without temperatures."""

    needs = ("label_set",)
    main = "label_ece"

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._probs += prediction["probs"]
        self._before += (1 / (1 + np.exp(-np.asarray(prediction["logits"])))).tolist()
        self._right += np.isin(np.arange(len(prediction["probs"])), truth["label_set"]).tolist()


@METRICS.register("word_ece")
class WordCalibrationError(CalibrationError):
    """Expected calibration error of the labels of all words, with and without temperature."""

    needs = ("labels",)
    main = "word_ece"

    def update(self, prediction: Prediction, truth: Truth) -> None:
        if "logits" not in prediction:
            raise ConfigError("metrics: word_ece needs the probabilities of words; set calibrate: true")
        self._probs += prediction["probs"]
        self._before += highest_probs(prediction["logits"])
        self._right += [
            ours == true for ours, true in zip(prediction["labels"], truth["labels"], strict=True)
        ]
