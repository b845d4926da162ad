"""The result of a check, as one value: to print, as JSON, or for a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palm.check.data import TaskData
from palm.check.measuring import Cost
from palm.check.planning import RunPlan
from palm.check.problems import SEVERITIES, Problem
from palm.check.saving import Saving
from palm.core.version import __version__

VERSION = 1
"""Of the JSON."""


@dataclass(frozen=True)
class Wiring:
    """The components of a task, and the tensors that connect them.

    Args:
        task: its name.
        reader: its reader, as the configuration names it.
        backbone: the shared encoder.
        paradigm: its head.
        reads: what the head reads -> its form.
        targets: what its loss compares with -> its form.
        shares_head_with: tasks with the same head.
        metrics: how it is scored; empty where it is not.
    """

    task: str
    reader: str
    backbone: str
    paradigm: str
    reads: Mapping[str, str]
    targets: Mapping[str, str]
    shares_head_with: Sequence[str]
    metrics: Sequence[str]


@dataclass(frozen=True)
class Computing:
    """The device and the precision of a run, with the reasons for them.

    Args:
        device: its name.
        why: it was chosen.
        devices: how many share the work.
        precision: fp32 or bf16.
        why_precision: that was chosen.
        parameters: of encoder and heads together.
        trained: of these, those that are not frozen.
    """

    device: str
    why: str
    devices: int
    precision: str
    why_precision: str
    parameters: int
    trained: int


@dataclass(frozen=True)
class Check:
    """A dry run.

    Args:
        name: the configuration.
        problems: everything found, the worst first.
        data: by task.
        wiring: by task; empty where the configuration is wrong.
        computing: None likewise, as what follows.
        plan: its steps.
        cost: its time and memory; None also where nothing was measured.
        saving: what it writes.
        seconds: what the check took.
    """

    name: str
    problems: Sequence[Problem]
    data: Sequence[TaskData] = ()
    wiring: Sequence[Wiring] = ()
    computing: Computing | None = None
    plan: RunPlan | None = None
    cost: Cost | None = None
    saving: Saving | None = None
    seconds: float = 0.0
    counts: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        found = [problem.severity for problem in self.problems]
        worst_first = sorted(self.problems, key=lambda problem: SEVERITIES.index(problem.severity))
        object.__setattr__(self, "problems", worst_first)
        object.__setattr__(self, "counts", {severity: found.count(severity) for severity in SEVERITIES})

    def is_fine(self, strict: bool = False) -> bool:
        """Check that there is no error; with `strict`, no warning either."""
        return not (self.counts["error"] or (strict and self.counts["warning"]))

    def as_json(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        found = {"format": "palm-check", "version": VERSION, "palm": __version__, **dataclasses.asdict(self)}
        for task in found["data"]:
            del task["problems"]  # they are among those of the whole run
        return found
