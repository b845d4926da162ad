"""The data of every figure: curves of a history, as values over global steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from palm.report.history import History

Point = tuple[float, float]
"""A global step and a value."""

RATE_INTERVALS = 40
"""Number of intervals over which a run's throughput is shown: fewer hide pauses, more show noise."""


@dataclass(frozen=True)
class Curve:
    """A named sequence of points with ascending steps.

    Args:
        name: its name in the table.
        points: steps and values.
        group: its name in the legend, shared by curves of one colour; empty: its own name.
        is_dashed: whether it belongs to a solid one of its group.
    """

    name: str
    points: Sequence[Point]
    group: str = ""
    is_dashed: bool = False

    @property
    def legend(self) -> str:
        """The name that the legend has for it."""
        return self.group or self.name


def curve_of(name: str, points: Iterable[Point], group: str = "", is_dashed: bool = False) -> Curve:
    """Return a curve without the points that are not finite."""
    return Curve(name, [(step, value) for step, value in points if math.isfinite(value)], group, is_dashed)


def mean_losses(history: History, task: str) -> list[Point]:
    """Return the mean loss of a task between logged steps."""
    return [(each.step, each.means[task]) for each in history.losses if task in each.means]


def dev_losses(history: History, task: str) -> list[Point]:
    """Return the dev losses of a task."""
    return [(each.step, each.dev_loss.get(task, math.nan)) for each in history.evaluations]


def metric_names(history: History, task: str) -> list[str]:
    """Return the names of a task's scores, the main one first."""
    return [*dict.fromkeys(name for each in history.evaluations for name in each.scores.get(task, ()))]


def scores(history: History, task: str, name: str) -> list[Point]:
    """Return one of a task's scores over its evaluations."""
    return [(each.step, each.scores.get(task, {}).get(name, math.nan)) for each in history.evaluations]


def of_steps(history: History, kind: str) -> list[Point]:
    """Return a value of every logged step: `learning_rate` or `grad_norm`."""
    return [*{step.step: (step.step, getattr(step, kind)) for step in history.steps}.values()]


def realised_steps(history: History, task: str) -> list[Point]:
    """Return the number of steps of a task over global steps, starting at (0, 0)."""
    known = [(draws.step, draws.steps[task]) for draws in history.draws if task in draws.steps]
    return [*dict([(0, 0), *known]).items()]


def paces(history: History) -> list[Curve]:
    """Return rows and tokens per second, each over intervals of the run without an evaluation."""
    every = max(1, len(history.steps) // RATE_INTERVALS)
    marks = [*history.steps[:-1:every], *history.steps[-1:]]
    pauses = [each.step for each in history.evaluations]
    spans = [
        (a, b, b.seconds - a.seconds)
        for a, b in pairwise(marks)
        if b.seconds > a.seconds and not any(a.step <= step < b.step for step in pauses)
    ]
    return [
        Curve("rows/s", [(b.step, (b.rows - a.rows) / span) for a, b, span in spans]),
        Curve("tokens/s", [(b.step, (b.tokens - a.tokens) / span) for a, b, span in spans]),
    ]


def mean_of(curve: Curve) -> float:
    """Return the mean value of a curve; NaN without points."""
    return fmean(value for _, value in curve.points) if curve.points else math.nan
