"""A metric on resampled test rows: from sums of what it counts per row where it adds up, else row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from palm.experiments.comparison.statistics import Floats
from palm.metrics import Metric
from palm.metrics.base import Prediction, Truth

Pair = tuple[Prediction, Truth]

MOST_WEIGHTS = 1 << 22
"""Numbers of the matrix of weights that is in memory at a time; 32 MB."""


def resampled_scores(
    metric: type[Metric], runs: Sequence[Sequence[Pair]], resamples: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The main number of a metric for several predictions of the same rows: on all rows, and resampled.

    Every resample draws as many rows as there are, with replacement, and the same ones for all runs; what
    belongs together (`Metric.examples_per_unit`) is drawn together.

    Returns:
        float64[runs], and float64[resamples, runs].
    """
    units = len(runs[0]) // metric.examples_per_unit
    scorers = [_scorer(metric, pairs) for pairs in runs]
    whole = np.array([score(np.ones(units, dtype=np.int64)) for score in scorers])
    found = np.empty((resamples, len(runs)))
    for first in range(0, resamples, size := max(1, MOST_WEIGHTS // units)):
        number = min(size, resamples - first)
        weights = rng.multinomial(units, np.full(units, 1 / units), size=number)
        for k, score in enumerate(scorers):
            found[first : first + number, k] = [score(each) for each in weights]
    return whole, found


def _scorer(metric: type[Metric], pairs: Sequence[Pair]) -> Callable[[Any], float]:
    """A function from how often every unit was drawn, int64[units], to the metric's main number."""
    units = [pairs[k : k + metric.examples_per_unit] for k in range(0, len(pairs), metric.examples_per_unit)]
    if (counted := _counted(metric, units)) is not None:
        from_sums = partial(_from_sums, metric, *counted)
        if _agrees(metric, units, from_sums):
            return from_sums

    def one_by_one(weights: Any) -> float:
        counting = metric()
        for place in np.repeat(np.arange(len(units)), weights):
            for prediction, truth in units[place]:
                counting.update(prediction, truth)
        return counting.compute()[metric.main]

    return one_by_one


Key = tuple[str, Any]
"""An attribute of a metric, and of a counter its key; None for a plain number."""


def _from_sums(metric: type[Metric], names: Sequence[Key], table: Floats, weights: Any) -> float:
    """Compute the main number of a metric whose counters have the weighted sums of the units' ones."""
    restored = metric()
    for (name, key), value in zip(names, (weights @ table).tolist(), strict=True):
        if key is None:
            setattr(restored, name, value)
        elif value:
            getattr(restored, name)[key] = int(value) if value.is_integer() else value
    return restored.compute()[metric.main]


def _counted(metric: type[Metric], units: Sequence[Sequence[Pair]]) -> tuple[list[Key], Floats] | None:
    """The counters of a metric, and their values after each unit alone, float64[units, names].

    None where what it keeps is not numbers and counters.
    """
    cells: list[tuple[int, Key, float]] = []
    for row, unit in enumerate(units):
        counting = metric()
        for prediction, truth in unit:
            counting.update(prediction, truth)
        for name, value in vars(counting).items():
            if isinstance(value, Counter):
                cells += [(row, (name, key), number) for key, number in value.items()]
            elif isinstance(value, int | float):
                cells.append((row, (name, None), value))
            else:
                return None
    places = {name: k for k, name in enumerate(dict.fromkeys(name for _, name, _ in cells))}
    table = np.zeros((len(units), len(places)))
    for row, key, value in cells:
        table[row, places[key]] = value
    return list(places), table


def _agrees(metric: type[Metric], units: Sequence[Sequence[Pair]], from_sums: Callable[[Any], float]) -> bool:
    """Check that the metric is a function of sums: not every number that an object keeps adds up."""
    for number in {len(units), (len(units) + 1) // 2}:
        counting = metric()
        for prediction, truth in (pair for unit in units[:number] for pair in unit):
            counting.update(prediction, truth)
        sums = from_sums((np.arange(len(units)) < number).astype(np.int64))
        if not np.isclose(counting.compute()[metric.main], sums, rtol=1e-9, atol=1e-12, equal_nan=True):
            return False
    return True
