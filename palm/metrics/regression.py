"""Metrics of predicted numbers: two correlations, the mean squared error, and the deviance of counts."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from palm.metrics.base import METRICS, Metric, Prediction, Truth

Floats = npt.NDArray[np.float64]


class OfNumbers(Metric):
    """Base of metrics of predicted and true numbers."""

    needs = ("value",)

    def __init__(self) -> None:
        self._predicted: list[float] = []
        self._true: list[float] = []

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._predicted.append(prediction["value"])
        self._true.append(truth["value"])

    def compute(self) -> dict[str, float]:
        return {self.main: self.number(np.asarray(self._predicted), np.asarray(self._true))}

    @abstractmethod
    def number(self, predicted: Floats, true: Floats) -> float:
        """The metric of two arrays of the same length."""


@METRICS.register("pearson")
class Pearson(OfNumbers):
    """The linear correlation, from -1 to 1; not a number where either side is constant."""

    main = "pearson"
    worst = -1.0

    def number(self, predicted: Floats, true: Floats) -> float:
        return correlation(predicted, true)


@METRICS.register("spearman")
class Spearman(OfNumbers):
    """The correlation of ranks, from -1 to 1; equal numbers share the mean of their ranks."""

    main = "spearman"
    worst = -1.0

    def number(self, predicted: Floats, true: Floats) -> float:
        return correlation(ranks(predicted), ranks(true))


@METRICS.register("mse")
class MeanSquaredError(OfNumbers):
    """The mean of the squared differences; 0 is perfect."""

    main = "mse"
    higher_is_better = False

    def number(self, predicted: Floats, true: Floats) -> float:
        return float(np.mean((predicted - true) ** 2))


@METRICS.register("poisson_deviance")
class PoissonDeviance(OfNumbers):
    """The mean deviance of counts from predicted means: twice y * log(y / mean) - y + mean; 0 is perfect."""

    main = "poisson_deviance"
    higher_is_better = False

    def number(self, predicted: Floats, true: Floats) -> float:
        logarithms = np.log(np.where(true > 0, true / predicted, 1.0))
        return float(2 * np.mean(true * logarithms - true + predicted))


def correlation(one: Floats, other: Floats) -> float:
    """Pearson's correlation of two arrays of the same length."""
    # Asked of the numbers themselves: subtracting the mean leaves rounding, not 0.
    if (one == one[0]).all() or (other == other[0]).all():
        return float("nan")
    one = one - one.mean()
    other = other - other.mean()
    # Rounding may carry the quotient beyond 1.
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.clip(np.dot(one, other) / norms, -1, 1))


def ranks(values: Floats) -> Floats:
    """The rank of every value, from 1; equal ones have the mean of the ranks that they take up."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    # The ranks that equal numbers take up are consecutive, so their mean is in the middle.
    last = np.cumsum(counts)
    mean: Floats = (last - (counts - 1) / 2)[which]
    return mean
