"""A comparison as a picture: for every target the scores of all variants, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palm.core.errors import PalmError
from palm.report.plot import COLOURS, NEEDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_comparison(found: Mapping[str, Any]) -> Figure:
    """A panel for every target: a point for every seed, the mean with its standard error beside them.

    Args:
        found: the content of `compare.json`.

    Raises:
        PalmError: matplotlib is missing.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise PalmError(NEEDS) from None
    targets = list(found["tests"])
    variants = found["variants"]
    size = (4.8 * len(targets), 1.2 + 0.55 * len(variants))
    figure, axes = pyplot.subplots(1, len(targets), figsize=size, squeeze=False, layout="constrained")
    for place, target in zip(axes[0], targets, strict=True):
        shown = [variant for variant in variants if target in variant["scores"]]
        for row, variant in enumerate(shown):
            scores = variant["scores"][target]
            colour = COLOURS[variants.index(variant) % len(COLOURS)]
            seeds = scores["per_seed"]
            place.plot(seeds, [row] * len(seeds), "o", color=colour, alpha=0.35, markersize=5)
            error = scores["standard_error"]
            place.errorbar(
                scores["mean"], row + 0.2, xerr=error, fmt="D", color=colour, capsize=3, markersize=5
            )
        place.set_yticks(range(len(shown)), [variant["name"] for variant in shown])
        place.invert_yaxis()
        place.margins(y=0.25)
        place.set_xlabel(found["tests"][target]["metric"])
        place.set_title(target, fontsize="medium")
        place.grid(alpha=0.25)
    figure.supxlabel("points: seeds; diamonds: their mean and its standard error", fontsize="small")
    pyplot.close(figure)
    return figure
