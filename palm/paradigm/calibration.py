"""Temperatures and thresholds, fitted to logits or probabilities of dev data and the true labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

MIN_TEMPERATURE = 0.05
"""The highest temperature is its inverse. If all predictions are right, the optimum would be 0."""

STEPS = 50


def best_temperature(logits: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return the temperature that maximizes the likelihood of the labels; 1 if all labels are equal.

    Args:
        logits: [rows, labels].
        labels: [rows].

    Source: Guo et al., 2017, "On calibration of modern neural networks".
    """
    if len({*labels.tolist()}) < 2:
        return 1.0
    logits = logits.astype(np.float64)
    true = logits[np.arange(len(labels)), labels].sum()
    low, high = np.log([MIN_TEMPERATURE, 1 / MIN_TEMPERATURE])
    for _ in range(STEPS):  # the likelihood has a single maximum in the inverse temperature
        middle = (low + high) / 2
        scaled = logits * np.exp(-middle)
        weights = np.exp(scaled - scaled.max(1, keepdims=True))
        expected = ((weights * logits).sum(1) / weights.sum(1)).sum()
        low, high = (low, middle) if true > expected else (middle, high)
    return float(np.exp(middle))


def lowest_threshold(confidence: Floats, right: npt.NDArray[np.bool_], precision: float) -> float:
    """Return the lowest confidence threshold that reaches a precision; a value above 1 if none does.

    Args:
        confidence: the probability of every prediction.
        right: True for right predictions.
        precision: required fraction of right predictions at or above the threshold.
    """
    order = np.argsort(-confidence, kind="stable")
    ranked = confidence[order]
    precisions = right[order].cumsum() / np.arange(1, len(ranked) + 1)
    is_last = np.append(ranked[1:] < ranked[:-1], True)  # among equal confidences
    enough = np.flatnonzero((precisions >= precision) & is_last)
    return float(ranked[enough[-1]]) if len(enough) else 2.0


def best_thresholds(probs: Floats, true: npt.NDArray[np.bool_]) -> Floats:
    """Return the threshold with the highest F1 for every label; ties go to the one nearest to 0.5.

    A threshold halfway between the lowest right probability and the next one below would fit no other texts
    where a label has few: on the tags of 80 texts, F1 on other texts was 0.87 in place of 0.89.

    Args:
        probs: [texts, labels].
        true: [texts, labels].
    """
    labels = probs.shape[1]
    logits = np.linspace(-6, 6, 241)
    grid = 1 / (1 + np.exp(-logits))
    # The number of thresholds that each probability reaches gives the counts above each threshold.
    reached = np.searchsorted(grid, probs, side="right") + np.arange(labels) * (len(grid) + 1)
    sizes = labels * (len(grid) + 1)
    given, right = (
        np.bincount(reached.ravel(), weights, sizes).reshape(labels, -1)[:, :0:-1].cumsum(1)[:, ::-1]
        for weights in (None, true.ravel().astype(np.float64))
    )  # [labels, thresholds]
    scores = 2 * right / (given + true.sum(0)[:, None]).clip(1)
    is_best = scores >= scores.max(1, keepdims=True) - 1e-9
    thresholds: Floats = grid[np.where(is_best, np.abs(logits), np.inf).argmin(1)].astype(np.float32)
    return thresholds
