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
"""The accepted probability of calling two equal ways different."""

MOST_SEEDS = 50
"""The most further seeds that are worth proposing."""

MAX_FREEDOM = 1000.0
"""The most degrees of freedom; the 97.5 % quantile is 1.962, that of the normal distribution 1.960."""


@dataclass(frozen=True)
class Difference:
    """The advantage of one way of training over another, in the metric's units; above 0 is better.

    Args:
        mean: over the seeds, on all test rows.
        standard_error: of `mean`, from seeds and rows together.
        seed_error: the part from seeds: standard deviation of `per_seed` / sqrt(seeds).
        row_error: the part from the test rows, which all seeds share.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        p_value: two-sided, for undecided, before any correction.
        per_seed: the difference for every seed.
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

    The variance of the mean difference is the sum of two parts: the effect of another set of S seeds (the
    variance over seeds / S), and the effect of other test rows, which is common to all seeds. The latter is
    estimated by resampling rows; the part of that variance which is specific to each seed is subtracted,
    because the variance over seeds already contains it. The statistic is compared with a t distribution with
    S - 1 degrees of freedom, as if all of the variance were estimated from S values: this is exact if the
    seeds dominate, and conservative if the rows do.

    Args:
        per_seed: difference for every seed on all rows, float64[seeds], at least 2 seeds.
        resampled: the same on resampled rows, which are the same for all seeds,
            float64[resamples, seeds].

    Source: a two-way layout with crossed random effects (Searle, Casella and McCulloch, 1992, "Variance
    Components", chapter 5), for which Owen, 2007, "The pigeonhole bootstrap", compares resampling methods.
    """
    seeds = len(per_seed)
    mean = float(per_seed.mean())
    of_seeds = float(per_seed.var(ddof=1)) / seeds
    together = float(resampled.mean(axis=1).var(ddof=1))
    apart = float(resampled.var(axis=0, ddof=1).mean())
    # The variance for one seed is common + own, that of the mean over S seeds is common + own / S; their
    # difference is (S - 1) * own / S.
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


def more_seeds(effect: Difference, level: float) -> int | None:
    """Return how many more seeds would make such a difference certain; None if `MOST_SEEDS` would not.

    The variance over seeds is divided by their number; that of the test rows, which all seeds share, stays.

    Args:
        effect: a difference that is not certain.
        level: the p-value below which it would be.
    """
    seeds = len(effect.per_seed)
    own = seeds * effect.seed_error**2
    for more in range(1, MOST_SEEDS + 1):
        error = math.sqrt(own / (seeds + more) + effect.row_error**2)
        if abs(effect.mean) > t_quantile(1 - level / 2, seeds + more - 1) * error:
            return more
    return None


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, which bounds the probability of any false positive.

    Source: Holm, 1979, "A simple sequentially rejective multiple test procedure".
    """
    values = np.array(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    values[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return list(map(float, values))


def t_tail(value: float, freedom: float) -> float:
    """Return the probability that a variable with Student's t distribution is above `value` >= 0.

    With x = sqrt(freedom) * tan(angle) the density becomes a power of the cosine, which is integrated by
    Gauss-Legendre quadrature; errors are below 1e-9 for integer degrees of freedom.
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
    """Return the `share` quantile of Student's t distribution, for `share` > 0.5."""
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
