"""Differences between two runs: settings with their origins, data, versions, steps, scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from palm.core.logging import aligned, shown_score, shown_value
from palm.report.run import Run, Value, read_run, training_of

FOLDER = "save_path"
"""The setting in which two runs always differ."""

MOST_CHARACTERS = 48
"""Maximum characters of a value in the table."""

Key = tuple[str, str, str]
"""Kind of a fact (`settings`, `data`, `versions`, `steps`, `scores`), its task or section, and its name."""


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ.

    Args:
        kind: `settings`, `data`, `versions`, `steps` or `scores`.
        where: the task or section; empty for the whole run.
        first: the value in the first run, with its name and origin; None if it has none.
        second: the value in the second run.
    """

    kind: str
    where: str
    name: str
    first: Value
    second: Value


def differences(first: str, second: str) -> list[Difference]:
    """List the differences between two runs.

    Settings that neither run sets are not compared: their defaults differ only if the versions of palm do.

    Args:
        first: the folder of a run, its `save_path`.
        second: the folder of another run.

    Raises:
        StorageError: a folder has no history.
    """
    one, other = (dict(_facts(read_run(folder))) for folder in (first, second))
    absent = Value("", None)
    pairs = ((key, one.get(key, absent), other.get(key, absent)) for key in {**one, **other})
    # Of the same kind, in order: keys that only the second run has come last.
    found = [Difference(*key, mine, its) for key, mine, its in pairs if mine.value != its.value]
    kinds = list(dict.fromkeys(kind for kind, *_ in one))
    return sorted(found, key=lambda each: kinds.index(each.kind) if each.kind in kinds else len(kinds))


def _facts(run: Run) -> Iterator[tuple[Key, Value]]:
    """Yield all that is compared."""
    for title, values in run.sections.items():
        for value in values:
            if value.name != FOLDER:
                yield ("settings", "" if title == "global" else title, value.name), value
    for kind, where, name, fact in _recorded(run):
        yield (kind, where, name), Value(name, fact)


def _recorded(run: Run) -> Iterator[tuple[str, str, str, Any]]:
    """Yield data, versions, steps and scores; the best evaluation is the one that the run chose."""
    start, end = run.history.start, run.history.end
    for task, plan in start.tasks.items():
        yield "data", task, "training rows", plan.rows
    for model in run.models:
        for name, file in (training_of(model).get("data") or {}).items():
            yield "data", model.task, f"rows of {name}", file.get("rows")
            yield "data", model.task, f"SHA-256 of {name}", file.get("sha256")
    for name, value in {**run.versions, "device": start.device, "precision": start.precision}.items():
        yield "versions", "", name, value
    yield "steps", "", "end", end and f"{end.reason} at {end.step}"
    for task, plan in start.tasks.items():
        yield "steps", task, "planned steps", plan.expected_steps
        yield "steps", task, "steps", run.history.task_steps[task]
    for evaluation in run.history.evaluations:
        for task, scores in evaluation.scores.items():
            for metric, score in scores.items():
                for which in ("last", "best") if task in evaluation.best else ("last",):
                    yield "scores", task, f"{metric}, {which}", None if math.isnan(score) else score


def difference_table(found: Sequence[Difference], first: str, second: str) -> str:
    """Format a table for each kind of difference."""
    if not found:
        return f"no differences between {first} and {second}"
    lines: list[str] = []
    for kind, group in groupby(found, key=lambda each: each.kind):
        rows = [(kind.capitalize(), first, second)]
        for each in group:
            name = f"  {each.where}: {each.name}" if each.where else f"  {each.name}"
            rows.append((name, _shown(kind, each.first), _shown(kind, each.second)))
        lines += ["", *aligned(rows)]
    return "\n".join(lines[1:])


def _shown(kind: str, value: Value) -> str:
    if value.value is None:
        return "-"
    text = shown_score(value.value) if kind == "scores" else shown_value(value.value)
    text = text if len(text) <= MOST_CHARACTERS else f"…{text[-MOST_CHARACTERS:]}"
    return f"{text} ({value.origin})" if value.origin else text
