"""Tuning: settings of each way to train, chosen by dev data before test data is used, at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palm.core.errors import PalmError
from palm.experiments.comparison.setup import Setup, dev_file_of
from palm.experiments.comparison.variants import Length, Variant
from palm.experiments.grid.folder import GridRun, Result, best_of
from palm.train.model_paths import BEST

UPDATES = "updates"
"""The only setting of a point that is not a setting of a run: a factor of the updates of each way."""


@dataclass(frozen=True)
class Point:
    """Settings to try for every way.

    Args:
        values: setting -> value, as given.
        setup: the comparison with these values.
    """

    values: Mapping[str, Any]
    setup: Setup

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values.items())


def tuning_problems(setup: Setup, points: Sequence[Point]) -> Iterator[str]:
    """List the reasons why settings cannot be chosen by dev data and then compared on other rows."""
    for target in setup.tests:
        if setup.is_dev(target):
            yield f"tune: dev data chooses the settings of {target!r}; name other rows: --test {target}=FILE"
        elif dev_file_of(setup.plan, target) is None:
            yield f"tune: dev data chooses the settings, and task {target!r} has no dev_file"
    tried = {name for point in points for name in point.values}
    for stage in setup.given_stages():
        if own := tried & stage.keys():
            yield f"tune: a stage sets {', '.join(sorted(own))} itself; remove it there to have it tuned"


def tuned(
    setup: Setup,
    points: Sequence[Point],
    ways: Sequence[tuple[Variant, Length]],
    train: Callable[[Sequence[GridRun]], Mapping[str, Result]],
) -> dict[str, Point]:
    """Train every way at every point with the first seed, and choose by dev score.

    Args:
        setup: the comparison.
        points: the settings to try.
        ways: the variants.
        train: trains runs and returns run -> its result.

    Returns:
        Variant -> the point with its best dev score.

    Raises:
        PalmError: no run of a way finished.
    """
    runs: dict[str, tuple[str, Point]] = {}
    waiting = []
    for number, point in enumerate(points):
        for run in point.setup.runs(ways, [setup.settings.random_seed]):
            name = f"tune-{run.name.rpartition('-seed')[0]}-{number}"
            runs[name] = (run.name.rpartition("-seed")[0], point)
            waiting.append(replace(run, name=name, test={}))
    found: dict[str, tuple[float, Point]] = {}
    for name, result in train(waiting).items():
        variant, point = runs[name]
        last = result["dev"][-1][1] if result["dev"] else None
        score = best_of(result)[1] if setup.model == BEST else last
        if score is not None and result["state"] == "done":
            found[variant] = max(found.get(variant, (score, point)), (score, point), key=lambda each: each[0])
    if lost := [variant.name for variant, _ in ways if variant.name not in found]:
        raise PalmError(
            f"tune: no run of {', '.join(lost)} finished with a dev score; try lower learning rates"
        )
    return {variant: point for variant, (_, point) in found.items()}


def describe_tuning(points: Sequence[Point], best: Mapping[str, Point]) -> str:
    """Describe the chosen points; return an empty text if nothing was tuned."""
    if not best:
        return ""
    chosen = "; ".join(f"{variant} {point}" for variant, point in best.items())
    return f" Each way has the best of {len(points)} settings on its dev data, with the first seed: {chosen}."
