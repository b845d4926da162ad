"""A summary of all comparisons of tasks, with a verdict: keep, drop, no effect, try alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from palm.train.events import Pairs, Transferred
from palm.train.transfer import MIN_COMPARISONS

NEGLIGIBLE = 0.1
"""Smaller effects are ignored."""

NEGLIGIBLE_RANGE = 0.5
"""An effect of unknown sign is ignored if its whole interval is below this."""


@dataclass(frozen=True)
class Influence:
    """The effect of steps on one task on another, over a run.

    Args:
        helper: the task of the steps.
        target: the task that they affect.
        cosine: median cosine of both tasks' gradients over the whole encoder; None if unknown.
        look_ahead: median effect of steps on the helper, relative to equally long steps on the target itself
            (see `Transferred`).
        low: lower bound of the 95 % interval of that median.
        high: upper bound of that interval.
        count: number of comparisons.
    """

    helper: str
    target: str
    cosine: float | None
    look_ahead: float
    low: float
    high: float
    count: int

    @property
    def verdict(self) -> str:
        """`keep`, `drop`, `no effect`, or `try alone` (train the target without the helper to compare).

        Keep the helper if the whole interval is above 0 and drop it if that is below 0, unless the median is
        small.
        """
        if self.count < MIN_COMPARISONS:
            return "try alone"
        if abs(self.look_ahead) >= NEGLIGIBLE and (self.low > 0 or self.high < 0):
            return "keep" if self.low > 0 else "drop"
        return "no effect" if max(-self.low, self.high) < NEGLIGIBLE_RANGE else "try alone"

    @property
    def shown(self) -> str:
        """The verdict with its numbers, for a cell of a table."""
        interval = f"{self.low:+.2f} to {self.high:+.2f}"
        return f"{self.verdict} ({self.look_ahead:+.2f}, {interval}, of {self.count})"


def influences(comparisons: Sequence[Transferred]) -> list[Influence]:
    """Summarize the comparisons of a run for every pair of different tasks."""
    pairs = {
        (helper, target): None
        for each in comparisons
        for helper, row in each.look_ahead.items()
        for target in row
        if helper != target
    }
    found = []
    for helper, target in pairs:
        values = _known([each.look_ahead for each in comparisons], helper, target)
        cosines = _known([each.cosine for each in comparisons], helper, target)
        if values:
            cosine = median(cosines) if cosines else None
            low, high = median_interval(values)
            found.append(Influence(helper, target, cosine, median(values), low, high, len(values)))
    return found


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median for any distribution; the range of fewer than six values.

    The median is used because a comparison may be an extreme outlier if a loss is close to 0.

    Source: the sign test's interval between order statistics (Conover, 1999, "Practical Nonparametric
    Statistics", section 3.2).
    """
    count = len(values)
    outside = 0
    tail = 2.0 * 0.5**count
    # `tail` is the probability of at most `outside` values on either side of the median.
    while tail <= 0.05:
        outside += 1
        tail += 2.0 * math.comb(count, outside) * 0.5**count
    ordered = sorted(values)
    first = max(0, outside - 1)
    return ordered[first], ordered[count - 1 - first]


def _known(comparisons: Sequence[Pairs], helper: str, target: str) -> list[float]:
    """Return the finite values for a pair of tasks."""
    values = [pairs.get(helper, {}).get(target, math.nan) for pairs in comparisons]
    return [value for value in values if math.isfinite(value)]


def matrix(found: Sequence[Influence]) -> list[list[str]]:
    """Return a table of the effects of steps on each task (rows) on the others (columns); [] if unknown."""
    if not found:
        return []
    names = list(dict.fromkeys(name for each in found for name in (each.helper, each.target)))
    cells = {(each.helper, each.target): each.shown for each in found}
    return [["steps on", *(f"for {name}" for name in names)]] + [
        [name, *(cells.get((name, other), "") for other in names)] for name in names
    ]
