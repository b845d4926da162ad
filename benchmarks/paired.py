"""Means over seeds, and differences of ways that are paired by seed, as cells of tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from palm.experiments.statistics import LEVEL, holm, t_quantile, t_tail


def mean_of(values: Sequence[float], sign: str = "") -> str:
    """Return a mean and its standard error; `sign` is `+` where the sign is always shown."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):{sign}.1f}"
    found = f"{mean} ± {error_of(values):.1f}" if len(values) > 1 else f"{mean} (one seed)"
    return found.replace("-", "−")


def error_of(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def corrected(differences: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return 95 % intervals of mean differences over seeds, and p-values, corrected for their number (Holm).

    Where a p-value is corrected by a factor, the level of its interval is divided by it.
    """
    several = {name: values for name, values in differences.items() if len(values) > 1 and error_of(values)}
    p_values = [
        2 * t_tail(abs(statistics.mean(values)) / error_of(values), len(values) - 1)
        for values in several.values()
    ]
    found = {}
    for (name, values), p, raw in zip(several.items(), holm(p_values), p_values, strict=True):
        half = t_quantile(1 - LEVEL * raw / p / 2, len(values) - 1) * error_of(values)
        mean = statistics.mean(values)
        found[name] = f"{mean - half:+.1f} to {mean + half:+.1f}, p {p:.3f}".replace("-", "−")
    return found
