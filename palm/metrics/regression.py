"""Regression metrics: two correlations, the mean squared error and the Poisson deviance."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from palm.metrics.base import METRICS, Mean, Metric, Prediction, Truth

Floats = npt.NDArray[np.float64]


class Correlation(Metric):
    """Base of correlations between predicted and true numbers, from -1 to 1."""

    needs = ("value",)
    worst = -1.0
    baseline_name = "a random order"

    def __init__(self) -> None:
        self._predicted: list[float] = []
        self._true: list[float] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._predicted.append(prediction["value"])
        self._true.append(truth["value"])

    def compute(self) -> dict[str, float]:
        return {self.main: self.number(np.asarray(self._predicted), np.asarray(self._true))}

    @classmethod
    def baseline(cls, truths: Sequence[Truth]) -> dict[str, float]:  # noqa: ARG003 - it is 0 in the mean
        return {cls.main: 0.0}

    @abstractmethod
    def number(self, predicted: Floats, true: Floats) -> float:
        """The correlation of two arrays of the same length."""


@METRICS.register("pearson")
class Pearson(Correlation):
    """The linear correlation, from -1 to 1; NaN if either side is constant."""

    main = "pearson"

    def number(self, predicted: Floats, true: Floats) -> float:
        return correlation(predicted, true)


@METRICS.register("spearman")
class Spearman(Correlation):
    """The rank correlation, from -1 to 1; equal numbers share the mean of their ranks."""

    main = "spearman"

    def number(self, predicted: Floats, true: Floats) -> float:
        return correlation(ranks(predicted), ranks(true))


@METRICS.register("mse")
class MeanSquaredError(Mean):
    """The mean squared error; 0 is perfect."""

    needs = ("value",)
    main = "mse"
    higher_is_better = False

    def terms(self, prediction: Prediction, truth: Truth) -> list[float]:
        return [(prediction["value"] - truth["value"]) ** 2]


@METRICS.register("poisson_deviance")
class PoissonDeviance(Mean):
    """The mean deviance of counts from predicted means: twice y * log(y / mean) - y + mean; 0 is perfect."""

    needs = ("value",)
    main = "poisson_deviance"
    higher_is_better = False

    def terms(self, prediction: Prediction, truth: Truth) -> list[float]:
        mean = max(prediction["value"], float(np.finfo(np.float32).tiny))  # 0 if it underflows
        count = truth["value"]
        return [2 * (count * math.log(count / mean if count else 1.0) - count + mean)]


def correlation(one: Floats, other: Floats) -> float:
    """Pearson's correlation of two arrays of the same length."""
    # Compare the numbers themselves, because subtracting the mean leaves rounding errors.
    if (one == one[0]).all() or (other == other[0]).all():
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def ranks(values: Floats) -> Floats:
    """The rank of every value, from 1; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    # The ranks of equal values are consecutive, so their mean is in the middle.
    last = np.cumsum(counts)
    mean: Floats = (last - (counts - 1) / 2)[which]
    return mean
