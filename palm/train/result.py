"""The result of a training: history, best scores, steps, paths and time, for printing or display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from palm.core.logging import Printed, shown_score
from palm.core.process import duration
from palm.train.callbacks import Ended, Evaluated, Logged, Recorded, Saved
from palm.train.verdict import score_text

T = TypeVar("T")


@dataclass(frozen=True)
class BestScores:
    """A task's best evaluation: its global step, its scores, those of the deciding metric first, its rows."""

    step: int
    scores: Mapping[str, float]
    rows: int = 0


@dataclass(frozen=True)
class TrainingResult(Printed):
    """The result of a training.

    Args:
        history: the events in `history.jsonl`.
        best: task -> its best evaluation; only tasks with dev data.
        steps: task -> number of its steps.
        planned: task -> number of its planned steps.
        paths: `<task>`, `<task> (best)`, `all targets` (one model of them) or `checkpoint` -> the path where
            the last of its kind was saved.
        losses: task -> mean training loss of its steps before its last logged one (see `Losses`).
        seconds: duration, including earlier parts of a resumed run.
        stages: task -> the last stage that trained it, in a run with stages.
    """

    history: Sequence[Recorded]
    best: Mapping[str, BestScores]
    steps: Mapping[str, int]
    planned: Mapping[str, int]
    paths: Mapping[str, str]
    losses: Mapping[str, float]
    seconds: float
    stages: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_interrupted(self) -> bool:
        """True if the run was stopped before its end, for example by an interrupted cell, and can resume."""
        last = self.history[-1] if self.history else None
        return isinstance(last, Ended) and last.reason == "interrupted"

    def rows(self) -> list[list[str]]:
        """Return the result as a table: a header, and one row per task."""
        last = ["stage"] if self.stages else []
        found = [["task", "steps", "planned", "mean loss", "best score", "at step", "saved at", *last]]
        for task, steps in self.steps.items():
            best = self.best.get(task)
            name, score = next(iter(best.scores.items())) if best else ("", None)
            found.append(
                [
                    *(task, str(steps), str(self.planned[task]), shown_score(self.losses.get(task))),
                    f"{name} {score_text(score, best.rows, name)}" if best else "",
                    str(best.step) if best else "",
                    self.paths.get(f"{task} (best)", self.paths.get(task, "")),
                    *([self.stages.get(task, "")] if self.stages else []),
                ]
            )
        return found

    @property
    def summary(self) -> str:
        """The number of steps, the time, the model of all targets, and how to continue an interrupted run."""
        end = f"; all targets in one model: {self.paths[ALL]}" if ALL in self.paths else ""
        end += "; interrupted, continue with resume: auto" if self.is_interrupted else ""
        steps = f"{sum(self.steps.values())} steps{' of all tasks' if len(self.steps) > 1 else ''}"
        return f"{steps} in {duration(self.seconds)}{end}"

    def parts(self) -> list[str | list[list[str]]]:
        """Return the table and the summary."""
        return [self.rows(), self.summary]


ALL = "all targets"

KEYS = {
    "target": "{}",
    "best": "{} (best)",
    "best_overall": ALL,
    "last_overall": ALL,
    "checkpoint": "checkpoint",
}
"""Kind of a `Saved` event -> its key in `paths`."""


def result_of(
    events: Sequence[Recorded],
    steps: Mapping[str, int],
    planned: Mapping[str, int],
    seconds: float,
) -> TrainingResult:
    """Build the result from the events of a run's history; for the other arguments see `TrainingResult`."""
    best: dict[str, BestScores] = {}
    paths: dict[str, str] = {}
    losses: dict[str, float] = {}
    for event in events:
        if isinstance(event, Logged):
            losses[event.task] = event.mean_loss
        elif isinstance(event, Evaluated):
            rows = {task: scored.rows for task, scored in event.rows.items()}
            best |= {
                task: BestScores(event.step, event.scores[task], rows.get(task, 0)) for task in event.best
            }
        elif isinstance(event, Saved) and event.kind in KEYS:
            paths[KEYS[event.kind].format(event.task)] = event.path.as_posix()
    return TrainingResult(tuple(events), best, steps, planned, paths, losses, seconds)


def combined(stages: Mapping[str, TrainingResult]) -> TrainingResult:
    """Combine the results of stages: steps and seconds are added, later models and scores replace earlier.

    Args:
        stages: stage -> its result, in order.
    """
    results = list(stages.values())
    return TrainingResult(
        [event for result in results for event in result.history],
        _joined([result.best for result in results]),
        _added([result.steps for result in results]),
        _added([result.planned for result in results]),
        # A stage's models are copied to the same place in the folder of the run.
        _joined([{k: v for k, v in result.paths.items() if k != KEYS["checkpoint"]} for result in results]),
        _joined([result.losses for result in results]),
        sum(result.seconds for result in results),
        {task: stage for stage, result in stages.items() for task in result.steps},
    )


def _joined(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    return {name: value for part in parts for name, value in part.items()}


def _added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(part.get(name, 0) for part in parts) for name in _joined(parts)}
