"""One sentence for every task: how good it is beside what, where it is weak, and what to do next."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from palm.metrics import METRICS, Metric
from palm.report.analysis import Analysis
from palm.report.run import Run
from palm.train.callbacks import ScoredRows
from palm.train.model_paths import CONFIGURATION

WEAK = 0.5
"""F1 below which a label is named as weak."""


@dataclass(frozen=True)
class Verdict:
    """The best evaluation of a task.

    Args:
        task: its name.
        metric: the name of its main score; empty if it was never evaluated.
        score: its value.
        step: the global step of the evaluation.
        rows: the number of dev rows; 0 if unknown.
        interval: the 95 % interval of the score; empty if unknown.
        baseline: the same score of always the same answer; None if there is none.
        weakest: the label with the lowest F1, its F1 and how often it is true; None if no label is weak.
        never_right: number of labels with an F1 of 0, and of all labels.
        advice: what to do next.
        command: with which command; empty if there is none.
    """

    task: str
    metric: str = ""
    score: float = math.nan
    step: int = 0
    rows: int = 0
    interval: Sequence[float] = ()
    baseline: float | None = None
    weakest: tuple[str, float, int] | None = None
    never_right: tuple[int, int] = (0, 0)
    advice: str = ""
    command: str = ""

    @property
    def higher_is_better(self) -> bool:
        """True if a higher score is better."""
        return higher_is_better(self.metric)

    @property
    def beside(self) -> str:
        """The comparison with the baseline: `better`, `not clearly better`, `not better`, or empty."""
        if self.baseline is None or math.isnan(self.score):
            return ""
        sign = 1 if self.higher_is_better else -1
        ends = [sign * end for end in (self.score, *self.interval)]
        if ends[0] <= sign * self.baseline:
            return "not better"
        return "not clearly better" if min(ends) <= sign * self.baseline else "better"

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


def minus(text: str) -> str:
    """Replace the hyphens that begin numbers in a text with minus signs; -0.00 becomes 0.00."""
    return re.sub(r"(?<![\w.-])-(?=\d)", "\N{MINUS SIGN}", re.sub(r"-(0(\.0*)?)(?![\d.])", r"\1", text))


def metric_of(name: str) -> type[Metric] | None:
    """Return the metric whose main number has this name; None if palm has none."""
    return next((METRICS[each] for each in METRICS if METRICS[each].main == name), None)


def higher_is_better(name: str) -> bool:
    """Return True if a higher score of this name is better."""
    kind = metric_of(name)
    return kind is None or kind.higher_is_better


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
    return minus(f"{value:.{digits}f}")


def verdicts_of(run: Run, analyses: Mapping[str, Analysis | str]) -> list[Verdict]:
    """Return the verdicts on all tasks, the weakest first."""
    found = [_verdict(run, task, analyses.get(task, "")) for task in run.history.tasks]
    return sorted(found, key=lambda each: each.gain)


def _verdict(run: Run, task: str, analysis: Analysis | str) -> Verdict:
    best = run.history.best(task)
    if best is None:
        return Verdict(task, advice="It was not evaluated; give it a dev_file.")
    metric, score = next(iter(best.scores[task].items()))
    rows = scored_rows(run, task, analysis)
    labels = {name: each for name, each in rows.labels.items() if each[3]}
    weakest = min(labels, key=lambda name: (labels[name][2], -labels[name][3]), default="")
    is_weak = weakest and labels[weakest][2] < WEAK and len(labels) > 1
    found = Verdict(
        task,
        metric,
        score,
        best.step,
        rows.rows,
        rows.intervals.get(metric, ()),
        rows.baseline.get(metric),
        (weakest, labels[weakest][2], int(labels[weakest][3])) if is_weak else None,
        (sum(each[2] == 0 for each in labels.values()), len(labels)),
    )
    advice, command = _next(run, found)
    return replace(found, advice=advice, command=command)


def scored_rows(run: Run, task: str, analysis: Analysis | str) -> ScoredRows:
    """Return what the best score of a task stands beside: as recorded, or else as predicted again.

    An interval belongs to a score only if both are of the same model and the same data.
    """
    best = run.history.best(task)
    if best is not None and task in best.rows:
        return best.rows[task]
    is_same = (
        isinstance(analysis, Analysis)
        and best is not None
        and analysis.kind == "best"
        and not analysis.other_data
        and all(
            math.isclose(value, best.scores[task].get(name, math.nan), rel_tol=1e-3)
            for name, value in analysis.scores.items()
            if name in best.scores[task]
        )
    )
    if not isinstance(analysis, Analysis) or not is_same:
        return ScoredRows()
    labels = {
        each.label: [each.precision, each.recall, each.f1, each.support, each.predicted]
        for each in analysis.label_scores
    }
    return ScoredRows(analysis.data["examples"], analysis.baseline, analysis.intervals, labels)


def _next(run: Run, verdict: Verdict) -> tuple[str, str]:
    """Return what to do next for a task, and the command for it."""
    again = quote(str(run.folder / CONFIGURATION))
    end = run.history.end
    if run.is_configured and run.checkpoints and (end is None or end.reason != "finished"):
        return "Finish the run.", f"palm train {again} --resume auto"
    if run.is_configured and verdict.beside in ("not better", "not clearly better"):
        return "Look for faults in its data and settings.", f"palm check {again}"
    last = max((each.step for each in run.history.evaluations if each.scores.get(verdict.task)), default=0)
    epochs = run.setting(verdict.task, "num_epochs")
    if run.is_configured and verdict.step == last and isinstance(epochs, int | float) and verdict.gain < 0.99:
        longer = f"palm train {again} --num_epochs {2 * epochs:g} --save_path NEW_FOLDER"
        return "Its last evaluation was the best: train longer.", longer
    if (model := run.model(verdict.task)) is not None:
        return (
            "Score it on test rows.",
            f"palm evaluate --model {quote(str(model.folder))} --input TEST_FILE",
        )
    return "", ""
