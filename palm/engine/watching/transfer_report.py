"""Summary of many comparisons of tasks, with a verdict: keep, drop, try alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from palm.engine.training.events import Pairs, Transferred

LEAST = 3
"""Comparisons that a verdict needs at least."""


@dataclass(frozen=True)
class Influence:
    """The effect of steps on one task on another, over a run.

    Args:
        helper: the task that the steps were on.
        target: the other.
        cosine: mean cosine of their gradients over the whole encoder; None if unknown.
        look_ahead: mean share of its loss that the target lost, of a step that takes as much of its own from
            the helper; see `Transferred`.
        error: the standard error of that mean; None of a single comparison.
        count: comparisons.
    """

    helper: str
    target: str
    cosine: float | None
    look_ahead: float
    error: float | None
    count: int

    @property
    def verdict(self) -> str:
        """`keep`, `drop` or `try alone`: without the helper, to compare.

        Keep it where steps on it lower the target's loss by more than two standard errors, drop it where they
        raise it by as much.
        """
        if self.error is None or self.count < LEAST or abs(self.look_ahead) <= 2 * self.error:
            return "try alone"
        return "keep" if self.look_ahead > 0 else "drop"

    @property
    def shown(self) -> str:
        """Verdict and numbers, as one cell of a table."""
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.verdict} ({self.look_ahead:+.2f}{error})"


def influences(comparisons: Sequence[Transferred]) -> list[Influence]:
    """Sum up the comparisons of a run for every pair of different tasks."""
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
        angles = _known([each.cosine for each in comparisons], helper, target)
        if values:
            error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
            cosine = fmean(angles) if angles else None
            found.append(Influence(helper, target, cosine, fmean(values), error, len(values)))
    return found


def _known(comparisons: Sequence[Pairs], helper: str, target: str) -> list[float]:
    """Return the numbers of two tasks that are finite."""
    values = [pairs.get(helper, {}).get(target, math.nan) for pairs in comparisons]
    return [value for value in values if math.isfinite(value)]


def matrix(found: Sequence[Influence]) -> list[list[str]]:
    """Return a table of what steps on each task (rows) do to the others (columns), if any were compared."""
    if not found:
        return []
    names = list(dict.fromkeys(name for each in found for name in (each.helper, each.target)))
    cells = {(each.helper, each.target): each.shown for each in found}
    return [["steps on", *(f"for {name}" for name in names)]] + [
        [name, *(cells.get((name, other), "") for other in names)] for name in names
    ]
