"""What a task's best evaluation stands beside, said in the same way by log, report and model cards."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from palm.metrics import METRICS, Metric
from palm.train.callbacks import Evaluated, ScoredRows

WEAK = 0.5
"""F1 below which a label is named as weak."""


def metric_of(name: str) -> type[Metric] | None:
    """Return the metric whose main number has this name; None if palm has none."""
    return next((METRICS[each] for each in METRICS if METRICS[each].main == name), None)


def higher_is_better(name: str) -> bool:
    """Return True if a higher score of this name is better."""
    kind = metric_of(name)
    return kind is None or kind.higher_is_better


def minus(text: str) -> str:
    """Replace the hyphens that begin numbers in a text with minus signs; -0.00 becomes 0.00."""
    return re.sub(r"(?<![\w.-])-(?=\d)", "\N{MINUS SIGN}", re.sub(r"-(0(\.0*)?)(?![\d.])", r"\1", text))


def score_text(value: float | None, rows: int = 0, name: str = "") -> str:
    """Format a score with as many digits as its rows bear: two up to 99 rows, three up to 999, else four."""
    if value is None or math.isnan(value):
        return "–"
    if abs(value) >= 1e6:
        return minus(f"{value:.3g}")
    kind = metric_of(name)
    digits = min(max(len(str(rows)), 2), 4) if rows else 4
    if (kind is not None and kind.perfect == 100) or abs(value) >= 10:
        digits = max(digits - 2, 1)
    if kind is not None and not kind.higher_is_better and 0 < abs(value) < 0.01:
        return minus(f"{value:.2g}")  # an error may be far below the unit of its numbers
    return minus(f"{value:.{digits}f}")


@dataclass(frozen=True)
class Verdict:
    """An evaluation of a task.

    Args:
        task: its name.
        metric: the name of its main score; empty if it was never evaluated.
        score: its value.
        step: the global step of the evaluation.
        rows: the dev rows, and what the score stands beside.
    """

    task: str
    metric: str = ""
    score: float = math.nan
    step: int = 0
    rows: ScoredRows = field(default_factory=ScoredRows)

    @property
    def higher_is_better(self) -> bool:
        """True if a higher score is better."""
        return higher_is_better(self.metric)

    @property
    def interval(self) -> Sequence[float]:
        """The 95 % interval of the score; empty if unknown."""
        return self.rows.intervals.get(self.metric, ())

    @property
    def baseline(self) -> float | None:
        """The same score without any knowledge of the texts; None if there is none, or it says nothing."""
        return None if self.is_above_nothing else self.rows.baseline.get(self.metric)

    @property
    def is_above_nothing(self) -> bool:
        """True if the baseline finds nothing, as an answer without entities does, unlike the model."""
        kind = metric_of(self.metric)
        worst = kind.worst if kind is not None and kind.higher_is_better else None
        return worst is not None and self.rows.baseline.get(self.metric) == worst < self.score

    @property
    def baseline_name(self) -> str:
        """What the baseline is the score of."""
        return (metric_of(self.metric) or Metric).baseline_name

    @property
    def beside(self) -> str:
        """The comparison with the baseline: `better`, `not clearly better`, `not better`, or empty."""
        if self.baseline is None or math.isnan(self.score):
            return ""
        sign = 1 if self.higher_is_better else -1
        if sign * self.score <= sign * self.baseline:
            return "not better"
        is_clear = all(sign * end > sign * self.baseline for end in self.interval)
        return "better" if is_clear else "not clearly better"

    @property
    def normalized(self) -> float:
        """The score on a scale where 1 is perfect; NaN if it was never evaluated."""
        kind = metric_of(self.metric)
        return kind.normalized_score(self.score) if kind is not None else self.score

    @property
    def gain(self) -> float:
        """The share of the way from the baseline, or else from 0, to a perfect score; orders tasks."""
        kind = metric_of(self.metric)
        if kind is None or math.isnan(self.score):
            return -math.inf
        low = kind.normalized_score(self.baseline) if self.baseline is not None else 0.0
        return (self.normalized - low) / (1 - low) if low < 1 else 0.0

    @property
    def labels(self) -> Mapping[str, Sequence[float]]:
        """Label -> precision, recall, F1, true and predicted occurrences; only labels that are true."""
        return {name: each for name, each in self.rows.labels.items() if each[3]}

    @property
    def weakest(self) -> str:
        """The label with the lowest F1; empty if no label is weak, or if there is only one."""
        found = self.labels
        name = min(found, key=lambda name: (found[name][2], -found[name][3]), default="")
        return name if len(found) > 1 and found[name][2] < WEAK else ""

    @property
    def never_right(self) -> list[str]:
        """The labels with an F1 of 0."""
        return [name for name, each in self.labels.items() if each[2] == 0]


def verdict_of(task: str, best: Evaluated | None) -> Verdict:
    """Return the verdict on a task from its best evaluation, or None if it was never evaluated."""
    if best is None:
        return Verdict(task)
    metric, score = next(iter(best.scores[task].items()))
    return Verdict(task, metric, score, best.step, best.rows.get(task, ScoredRows()))
