"""Findings of a check, with their severity and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
