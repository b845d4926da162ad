"""The data of every figure: curves of a history, as values over global steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palm.report.history import History

Point = tuple[float, float]
"""A global step and a value."""

RATE_INTERVALS = 40
"""Number of intervals over which a run's throughput is shown: fewer hide pauses, more show noise."""


@dataclass(frozen=True)
class Curve:
    """A named sequence of points with ascending steps."""

    name: str
    points: Sequence[Point]


def _curve(name: str, points: Iterable[Point]) -> Curve:
    return Curve(name, [(step, value) for step, value in points if math.isfinite(value)])


def losses(history: History, task: str) -> Curve:
    """Return the losses of a task's logged steps."""
    return _curve("step loss", ((step.step, step.loss) for step in history.steps if step.task == task))


def mean_losses(history: History, task: str) -> Curve:
    """Return the running mean of a task's loss, which also covers the steps between logged ones."""
    found = ((step.step, step.mean_loss) for step in history.steps if step.task == task)
    return _curve("running mean", found)


def dev_losses(history: History, task: str) -> Curve:
    """Return the dev losses of a task."""
    return _curve(
        "dev loss", ((each.step, each.dev_loss.get(task, math.nan)) for each in history.evaluations)
    )


def metric_names(history: History, task: str) -> list[str]:
    """Return the names of a task's scores, the main one first."""
    return [*dict.fromkeys(name for each in history.evaluations for name in each.scores.get(task, ()))]


def scores(history: History, task: str, name: str) -> Curve:
    """Return one of a task's scores over its evaluations."""
    found = ((each.step, each.scores.get(task, {}).get(name, math.nan)) for each in history.evaluations)
    return _curve(name, found)


def of_steps(history: History, kind: str) -> Curve:
    """Return a value of every logged step: `learning_rate` or `grad_norm`."""
    return _curve(kind.replace("_", " "), ((step.step, getattr(step, kind)) for step in history.steps))


def realised_steps(history: History, task: str) -> Curve:
    """Return the number of steps of a task over global steps, starting at (0, 0)."""
    known = [(draws.step, draws.steps[task]) for draws in history.draws if task in draws.steps]
    return Curve(task, [*dict([(0, 0), *known]).items()])


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
