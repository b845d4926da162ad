"""The result of a check as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from palm.check.data import TaskData
    from palm.check.planning import Cost, RunPlan

Severity = Literal["error", "warning", "note"]
"""error: the run would stop, or could not start. warning: it would run, but results would be misleading or
rows wasted. note: good to know."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Problem:
    """One finding.

    Args:
        severity: how bad it is.
        code: its kind in one word, stable between versions: `leak`, `truncation` ...
        task: the task; empty for the whole run.
        message: place and problem, with numbers.
        remedy: what to do.
        examples: a few affected rows.
    """

    severity: Severity
    code: str
    task: str
    message: str
    remedy: str = ""
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        whose = f"{self.task}: " if self.task else ""
        text = f"{self.severity:7}  {whose}{self.message}"
        if self.remedy:
            text += f"\n         -> {self.remedy}"
        return "".join([text, *(f"\n            {line}" for line in self.examples)])


@dataclass(frozen=True)
class Check:
    """A dry run.

    Args:
        name: the configuration.
        problems: all findings, the worst first.
        data: the data of each task.
        wiring: lines about the components of each task, and one about the device; empty if the configuration
            has errors.
        plan: the steps of the run; None if the configuration has errors.
        cost: its time and memory; None if they were not measured.
        seconds: duration of the check.
    """

    name: str
    problems: Sequence[Problem]
    data: Sequence[TaskData] = ()
    wiring: Sequence[str] = ()
    plan: RunPlan | None = None
    cost: Cost | None = None
    seconds: float = 0.0

    @property
    def counts(self) -> Counter[Severity]:
        """The number of problems of each severity."""
        return Counter(problem.severity for problem in self.problems)

    def is_fine(self, strict: bool = False) -> bool:
        """Check that there are no errors; with `strict`, no warnings either."""
        return not (self.counts["error"] or (strict and self.counts["warning"]))
