"""The result of a check as one value, for text, JSON or a page."""

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
"""Version of the JSON format."""


@dataclass(frozen=True)
class Wiring:
    """The components of a task, and the tensors that connect them.

    Args:
        task: the task's name.
        reader: registered name of its reader.
        backbone: registered name of the shared encoder.
        paradigm: registered name of its head.
        reads: tensors that the head reads -> their specs.
        targets: tensors that its loss compares with -> their specs.
        shares_head_with: tasks with the same head.
        metrics: its metrics; empty if it is not evaluated.
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
        device: name of the device.
        why: the reason for the device.
        devices: number of devices.
        precision: fp32 or bf16.
        why_precision: the reason for the precision.
        parameters: number of parameters of encoder and heads.
        trained: number of those that are not frozen.
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
        problems: all findings, the worst first.
        data: the data of each task.
        wiring: the components of each task; empty if the configuration has errors.
        computing: device and precision; None if the configuration has errors, like plan, cost and saving.
        plan: the steps of the run.
        cost: its time and memory; also None if they were not measured.
        saving: the files that it writes.
        seconds: duration of the check.
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
        """Check that there are no errors; with `strict`, no warnings either."""
        return not (self.counts["error"] or (strict and self.counts["warning"]))

    def as_json(self) -> dict[str, Any]:
        """Return the check, JSON-ready."""
        found = {"format": "palm-check", "version": VERSION, "palm": __version__, **dataclasses.asdict(self)}
        for task in found["data"]:
            del task["problems"]  # also among those of the whole run
        return found
