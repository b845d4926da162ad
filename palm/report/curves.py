"""Curves of a history: points over global steps, thinned if there are many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palm.report.history import History

Point = tuple[float, float]
"""A global step, and a number."""

FEW_POINTS = 20

RATE_INTERVALS = 40
"""Over how many parts of a run its pace is shown: fewer hide pauses, more show noise."""


@dataclass(frozen=True)
class Curve:
    """A named sequence of points, the steps rising."""

    name: str
    points: Sequence[Point]

    def smoothed(self) -> Curve:
        """The mean of a tenth of the points around each, fewer at the ends; centred, so it does not lag."""
        half = len(self.points) // 20
        values = [value for _, value in self.points]
        windows = [values[max(0, k - half) : k + half + 1] for k in range(len(values))]
        means = [sum(window) / len(window) for window in windows]
        return Curve(self.name, [(step, mean) for (step, _), mean in zip(self.points, means, strict=True)])

    def thinned(self, most: int) -> Curve:
        """Every k-th point and the last, so that there are about `most` of them."""
        every = -(-len(self.points) // most) if self.points else 1
        kept = [*self.points[:-1:every], *self.points[-1:]]
        return Curve(self.name, kept)


def _curve(name: str, points: Iterable[Point]) -> Curve:
    return Curve(name, [(step, value) for step, value in points if math.isfinite(value)])


def losses(history: History, kind: str = "loss") -> dict[str, Curve]:
    """Task -> the losses of its logged steps, or `mean_loss`, the running mean of all its steps there."""
    return {
        task: _curve(task, ((step.step, getattr(step, kind)) for step in history.steps if step.task == task))
        for task in history.tasks
    }


def smooth_losses(history: History) -> dict[str, Curve]:
    """Task -> its smoothed losses; of few logged steps the running mean, which knows all steps between."""
    means = losses(history, "mean_loss")
    return {
        task: means[task] if len(curve.points) < FEW_POINTS else curve.smoothed()
        for task, curve in losses(history).items()
    }


def dev_losses(history: History) -> dict[str, Curve]:
    """Task -> its dev losses, of tasks that have any."""
    evaluations = history.evaluations
    found = {
        task: _curve(task, ((each.step, each.dev_loss.get(task, math.nan)) for each in evaluations))
        for task in history.tasks
    }
    return {task: curve for task, curve in found.items() if curve.points}


def scores(history: History) -> dict[str, list[Curve]]:
    """Task -> a curve for each of its metrics, the deciding one first; of tasks that were evaluated."""
    found = {}
    for task in history.tasks:
        own = [(each.step, each.scores[task]) for each in history.evaluations if task in each.scores]
        names = dict.fromkeys(name for _, scores in own for name in scores)
        if names:
            found[task] = [
                _curve(name, ((step, scores.get(name, math.nan)) for step, scores in own)) for name in names
            ]
    return found


def of_steps(history: History, kind: str) -> Curve:
    """Return a number of every logged step: `learning_rate`, or `grad_norm`."""
    return _curve(kind.replace("_", " "), ((step.step, getattr(step, kind)) for step in history.steps))


def realised_steps(history: History) -> dict[str, Curve]:
    """Task -> how many steps it had had, over global steps."""
    known: dict[int, dict[str, int]] = {0: dict.fromkeys(history.tasks, 0)}
    for draws in history.draws:
        known[draws.step] = dict(draws.steps)
    return {
        task: Curve(task, [(step, counts[task]) for step, counts in sorted(known.items()) if task in counts])
        for task in history.tasks
    }


def planned_steps(history: History) -> dict[str, Curve]:
    """Task -> the straight line to the steps that were planned for it."""
    total = history.start.total_steps
    return {
        task: Curve(task, [(0, 0), (total, plan.expected_steps)])
        for task, plan in history.start.tasks.items()
    }


def paces(history: History) -> list[Curve]:
    """Rows and tokens per second, each over a part of the run."""
    every = max(1, len(history.steps) // RATE_INTERVALS)
    marks = [*history.steps[:-1:every], *history.steps[-1:]]
    spans = [(a, b, b.seconds - a.seconds) for a, b in pairwise(marks)]
    return [
        Curve("rows/s", [(b.step, (b.rows - a.rows) / span) for a, b, span in spans if span > 0]),
        Curve("tokens/s", [(b.step, (b.tokens - a.tokens) / span) for a, b, span in spans if span > 0]),
    ]
