"""Curves of a history: values over global steps, thinned if there are many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palm.report.history import History

Point = tuple[float, float]
"""A global step and a value."""

FEW_POINTS = 20

RATE_INTERVALS = 40
"""Number of intervals over which a run's throughput is shown: fewer hide pauses, more show noise."""


@dataclass(frozen=True)
class Curve:
    """A named sequence of points with ascending steps."""

    name: str
    points: Sequence[Point]

    def smoothed(self) -> Curve:
        """Return the moving average over a tenth of the points, centred so that it does not lag."""
        half = len(self.points) // 20
        values = [value for _, value in self.points]
        windows = [values[max(0, k - half) : k + half + 1] for k in range(len(values))]
        means = [sum(window) / len(window) for window in windows]
        return Curve(self.name, [(step, mean) for (step, _), mean in zip(self.points, means, strict=True)])

    def thinned(self, most: int) -> Curve:
        """Return every k-th point and the last, about `most` in all."""
        every = -(-len(self.points) // most) if self.points else 1
        kept = [*self.points[:-1:every], *self.points[-1:]]
        return Curve(self.name, kept)


def _curve(name: str, points: Iterable[Point]) -> Curve:
    return Curve(name, [(step, value) for step, value in points if math.isfinite(value)])


def losses(history: History, task: str, kind: str = "loss") -> Curve:
    """Return the losses of a task's logged steps, or `mean_loss`, the running mean over all its steps."""
    return _curve(task, ((step.step, getattr(step, kind)) for step in history.steps if step.task == task))


def smooth_losses(history: History, task: str) -> Curve:
    """Return a task's smoothed losses; if few steps were logged, the running mean, which covers all steps."""
    curve = losses(history, task)
    return losses(history, task, "mean_loss") if len(curve.points) < FEW_POINTS else curve.smoothed()


def dev_losses(history: History, task: str) -> Curve:
    """Return the dev losses of a task."""
    return _curve(task, ((each.step, each.dev_loss.get(task, math.nan)) for each in history.evaluations))


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
    """Return rows and tokens per second, each over intervals of the run."""
    every = max(1, len(history.steps) // RATE_INTERVALS)
    marks = [*history.steps[:-1:every], *history.steps[-1:]]
    spans = [(a, b, b.seconds - a.seconds) for a, b in pairwise(marks)]
    return [
        Curve("rows/s", [(b.step, (b.rows - a.rows) / span) for a, b, span in spans if span > 0]),
        Curve("tokens/s", [(b.step, (b.tokens - a.tokens) / span) for a, b, span in spans if span > 0]),
    ]
