"""Charts of loss and dev scores of every task, for one run or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

from palm.report import curves
from palm.report.charts import MOST_MARKS, Chart, Line
from palm.report.curves import Curve
from palm.report.groups import SeedGroup, mean_curve
from palm.report.history import History

MOST_METRICS = 3
"""Number of metrics drawn for a task: its first ones."""


def task_charts(groups: Sequence[SeedGroup]) -> Iterator[Chart]:
    """Yield charts for every task: its loss, then its first metrics.

    Colours distinguish the tasks of a single run, or else the runs.
    """
    histories = [run.history for group in groups for run in group.runs]
    is_single = len(histories) == 1
    for place, task in enumerate(dict.fromkeys(task for history in histories for task in history.tasks)):
        metrics = _first_metrics(histories, task)
        made = [("loss", partial(_losses, task)), *((name, partial(_scores, task, name)) for name in metrics)]
        for name, lines_of in made:
            colours = [place] if is_single else range(len(groups))
            drawn = [lines_of(*each, is_single) for each in zip(groups, colours, strict=True)]
            lines = [line for line in chain.from_iterable(drawn) if line.curve.points]
            if lines:
                yield Chart(f"{task}: {name}", name, lines)


def _first_metrics(histories: Sequence[History], task: str) -> list[str]:
    named = [name for history in histories for name in curves.metric_names(history, task)]
    return [*dict.fromkeys(named)][:MOST_METRICS]


def _losses(task: str, group: SeedGroup, colour: int, is_single: bool) -> Iterator[Line]:
    smooth, dev = ("smoothed", "dev loss") if is_single else (group.name, f"{group.name}, dev loss")
    for run in group.runs:
        points = curves.losses(run.history, task).points
        raw = Curve("step loss", points)
        yield Line(raw, colour, faint=True, marks=len(points) <= MOST_MARKS, in_legend=is_single)
    yield Line(Curve(smooth, mean_curve(group, partial(curves.smooth_losses, task=task))), colour)
    points = mean_curve(group, partial(curves.dev_losses, task=task))
    yield Line(Curve(dev, points), colour, dash=1, marks=True)


def _scores(task: str, name: str, group: SeedGroup, colour: int, is_single: bool) -> Iterator[Line]:
    score = partial(curves.scores, task=task, name=name)
    for run in group.runs if len(group.runs) > 1 else ():
        yield Line(score(run.history), colour, faint=True, in_legend=False)
    points = mean_curve(group, score)
    yield Line(Curve(name if is_single else group.name, points), colour, marks=is_single)
