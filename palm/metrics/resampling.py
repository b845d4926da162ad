"""A metric on resampled rows, computed from per-row sums if its counters are additive, else row by row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.metrics.base import Metric, Prediction, Truth, scores_of

Floats = npt.NDArray[np.float64]

Pair = tuple[Prediction, Truth]

MOST_UPDATES = 1_000_000
"""The most updates for the intervals of a metric that is not additive."""

MOST_QUICK = 1000
"""The most rows of quick intervals of a metric that is not additive."""


def resampled_scores(
    metric: type[Metric], runs: Sequence[Sequence[Pair]], resamples: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The main number of a metric for several runs on the same rows: on all rows, and on resampled ones.

    Every resample has as many rows as the original, drawn with replacement and the same for all runs; rows of
    one unit (`Metric.examples_per_unit`) are drawn together.

    Returns:
        float64[runs], and float64[resamples, runs].
    """
    of_runs = [_units_of(metric, pairs) for pairs in runs]
    scorers = [_scorer(metric, units) for units in of_runs]
    number = len(of_runs[0])
    whole = np.array([score(np.ones(number, dtype=np.int64))[metric.main] for score in scorers])
    draws = _draws(number, resamples, rng)
    return whole, np.array([[score(draw)[metric.main] for score in scorers] for draw in draws])


def score_intervals(
    metric: type[Metric], pairs: Sequence[Pair], quick: bool = False
) -> dict[str, tuple[float, float]]:
    """The 95 % intervals of a metric's numbers by name, with the rows as a sample.

    A number that is a fraction of rows has Wilson's interval. Others have percentiles of resampled rows, less
    the bias of resampling: a resample may lack a rare label, and so have another mean over labels than the
    rows. There is no interval if all resamples are equal.

    Args:
        metric: the metric.
        pairs: predictions and truths.
        quick: use 200 resamples, and none of a metric that is not additive on more than `MOST_QUICK` rows.
    """
    units = _units_of(metric, pairs)
    score = _scorer(metric, units)
    per_unit = [scores_of([metric], unit) for unit in units]
    resamples = 200 if quick else min(1000, max(200, MOST_UPDATES // len(units)))
    if quick and len(units) > MOST_QUICK and not isinstance(score, partial):
        resamples = 0
    drawn = [score(draw) for draw in _draws(len(units), resamples, np.random.default_rng(0))]
    found = {}
    for name, value in score(np.ones(len(units), dtype=np.int64)).items():
        own = np.array([each.get(name, math.nan) for each in per_unit]) / metric.perfect
        if np.isin(own, (0.0, 1.0)).all() and math.isclose(own.mean() * metric.perfect, value):
            low, high = (metric.perfect * end for end in share_interval(float(own.mean()), len(units)))
        else:
            known = [each[name] for each in drawn if math.isfinite(each.get(name, math.nan))]
            ends = np.percentile(known or [value], (2.5, 97.5)) + value - fmean(known or [value])
            least, most = (metric.worst, metric.perfect) if metric.higher_is_better else (0.0, math.inf)
            low, high = ends.clip(least, most).tolist()
        if low < high:
            found[name] = (low, high)
    return found


def share_interval(share: float, rows: int) -> tuple[float, float]:
    """The 95 % interval of a fraction of rows.

    Source: Wilson, 1927, "Probable inference, the law of succession, and statistical inference".
    """
    ratio = 1.96**2 / rows
    half = math.sqrt(ratio * share * (1 - share) + ratio**2 / 4)
    return (share + ratio / 2 - half) / (1 + ratio), (share + ratio / 2 + half) / (1 + ratio)


Units = Sequence[Sequence[Pair]]
"""Rows that are drawn together."""

Scorer = Callable[[Any], dict[str, float]]
"""Computes the metric's numbers from how often every unit was drawn, int64[units]."""


def _units_of(metric: type[Metric], pairs: Sequence[Pair]) -> Units:
    return [pairs[k : k + metric.examples_per_unit] for k in range(0, len(pairs), metric.examples_per_unit)]


def _draws(units: int, resamples: int, rng: np.random.Generator) -> Iterator[Any]:
    return (rng.multinomial(units, np.full(units, 1 / units)) for _ in range(resamples))


def _scorer(metric: type[Metric], units: Units) -> Scorer:
    if (counted := _counted(metric, units)) is not None:
        from_sums = partial(_from_sums, metric, *counted)
        if _agrees(metric, units, from_sums):
            return from_sums

    def one_by_one(weights: Any) -> dict[str, float]:
        drawn = (units[place] for place in np.repeat(np.arange(len(units)), weights).tolist())
        return scores_of([metric], (pair for unit in drawn for pair in unit))

    return one_by_one


Key = tuple[str, Any]
"""An attribute of a metric and, for a counter, one of its keys; None for a plain number."""


def _from_sums(metric: type[Metric], names: Sequence[Key], table: Floats, weights: Any) -> dict[str, float]:
    """Compute the numbers of a metric from the weighted sums of the units' counters."""
    restored = metric()
    for (name, key), value in zip(names, (weights @ table).tolist(), strict=True):
        if key is None:
            setattr(restored, name, value)
        elif value:
            getattr(restored, name)[key] = int(value) if value.is_integer() else value
    return restored.compute()


def _counted(metric: type[Metric], units: Units) -> tuple[list[Key], Floats] | None:
    """The counters of a metric, and their values for each single unit, float64[units, names].

    None if the metric has attributes other than numbers and counters.
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


def _agrees(metric: type[Metric], units: Units, from_sums: Scorer) -> bool:
    """Check that the metric is a function of sums, since not every numeric attribute is additive."""
    for number in {len(units), (len(units) + 1) // 2}:
        expected = scores_of([metric], (pair for unit in units[:number] for pair in unit))
        sums = from_sums((np.arange(len(units)) < number).astype(np.int64))
        if not np.allclose(
            list(expected.values()), list(sums.values()), rtol=1e-9, atol=1e-12, equal_nan=True
        ):
            return False
    return True
