"""The statistics of two ways of training, where both the seeds and the test rows are samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from palm.metrics.resampling import Floats

_gauss_legendre = cache(np.polynomial.legendre.leggauss)

LEVEL = 0.05
"""The chance to call two equal ways different that is accepted."""

MAX_FREEDOM = 1000.0
"""Above it, this one is taken; its 97.5 % quantile is 1.962, that of the normal distribution 1.960."""


@dataclass(frozen=True)
class Difference:
    """The advantage of one way of training over another, in the metric's units; above 0 is better.

    Args:
        mean: over the seeds, on all test rows.
        standard_error: of `mean`, seeds and rows together.
        seed_error: the part of the seeds: standard deviation of `per_seed` / sqrt(seeds).
        row_error: the part of the test rows, which all seeds share.
        low: where the 95 % interval begins.
        high: where it ends.
        p_value: two-sided, of no difference, before any correction.
        per_seed: the difference of every seed.
    """

    mean: float
    standard_error: float
    seed_error: float
    row_error: float
    low: float
    high: float
    p_value: float
    per_seed: Sequence[float]


def paired_difference(per_seed: Floats, resampled: Floats) -> Difference:
    """Compare two ways of training that share seeds and test rows.

    The variance of the mean difference has two parts that add up: what another set of S seeds would change
    (the variance over seeds / S), and what other test rows would change for all seeds alike. The latter comes
    from resampling rows; of that variance the part is taken off that is each seed's own, because it is
    already in the variance over seeds. The statistic is compared with a t distribution of S - 1 degrees of
    freedom, as if all of the variance were estimated from S values: exact where the seeds dominate, cautious
    where the rows do.

    Args:
        per_seed: difference of every seed on all rows, float64[seeds], 2 seeds or more.
        resampled: the same on resampled rows, those of a resample being the same for all seeds,
            float64[resamples, seeds].

    Source: a two-way layout with crossed random effects (Searle, Casella and McCulloch, 1992, "Variance
    Components", chapter 5), for which Owen, 2007, "The pigeonhole bootstrap", compares ways of resampling.
    """
    seeds = len(per_seed)
    mean = float(per_seed.mean())
    of_seeds = float(per_seed.var(ddof=1)) / seeds
    together = float(resampled.mean(axis=1).var(ddof=1))
    apart = float(resampled.var(axis=0, ddof=1).mean())
    # Of a single seed the variance is that of all together plus its own, of the mean over S seeds the
    # former plus own / S: the difference of the two is (S - 1) times own / S.
    own = max(0.0, (apart - together) / (seeds - 1))
    of_rows = max(0.0, together - own)
    error = math.sqrt(of_seeds + of_rows)
    statistic = abs(mean) / error if error else (math.inf if mean else 0.0)
    half = t_quantile(1 - LEVEL / 2, seeds - 1) * error
    return Difference(
        mean=mean,
        standard_error=error,
        seed_error=math.sqrt(of_seeds),
        row_error=math.sqrt(of_rows),
        low=mean - half,
        high=mean + half,
        p_value=2 * t_tail(statistic, seeds - 1),
        per_seed=per_seed.tolist(),
    )


def smallest_differences(seeds: int, rows: int) -> tuple[float, float]:
    """Estimate the smallest difference that a comparison can show, in points of accuracy: low and high.

    It is half of the 95 % interval before correction, for two ways that are right on different rows in 10 to
    30 % of them, and whose difference varies by 2 to 4 points from seed to seed.
    """
    low, high = (
        t_quantile(1 - LEVEL / 2, seeds - 1) * math.sqrt(deviation**2 / seeds + 100**2 * disagreement / rows)
        for deviation, disagreement in ((2, 0.1), (4, 0.3))
    )
    return low, high


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number: below a level, the chance of any false one is below it, too.

    Source: Holm, 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    corrected = [1.0] * len(p_values)
    highest = 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, p_values[k] * (len(p_values) - rank)))
        corrected[k] = highest
    return corrected


def t_tail(value: float, freedom: float) -> float:
    """The chance that a variable with Student's t distribution is above `value`, which is 0 or more.

    With x = sqrt(freedom) * tan(angle) the density becomes a power of the cosine, which Gauss and Legendre's
    rule integrates; errors are below 1e-9 for whole degrees of freedom.
    """
    freedom = min(freedom, MAX_FREEDOM)
    start = math.atan(value / math.sqrt(freedom))
    nodes, weights = _gauss_legendre(200)
    half = (math.pi / 2 - start) / 2
    angles = start + half * (nodes + 1)
    part = half * float(weights @ np.cos(angles) ** (freedom - 1))
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return part / whole


@cache
def t_quantile(share: float, freedom: float) -> float:
    """The value that a variable with Student's t distribution is below with a chance of `share` > 0.5."""
    low = 0.0
    high = 1.0
    while t_tail(high, freedom) > 1 - share:
        low = high
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_tail(middle, freedom) > 1 - share:
            low = middle
        else:
            high = middle
    return (low + high) / 2
