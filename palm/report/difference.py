"""Differences between two runs: settings with their origins, data, versions, steps, scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from palm.core.files.manifest import verified_object
from palm.core.files.records import read_record
from palm.core.shown import aligned, shown_score, shown_value
from palm.report.run import Run, Value, read_run
from palm.train.model_paths import DESCRIPTION
from palm.train.run_names import RECORD, RunRecord

FOLDER = "save_path"
"""The setting in which two runs always differ."""

FactsByPlace = dict[tuple[str, str], Any]
"""(task or section, name) -> value."""


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ.

    Args:
        kind: `setting`, `data`, `version`, `steps` or `score`.
        where: the task or section; empty for the whole run.
        name: of the setting, score or other value.
        first: the value in the first run; None if it has none.
        second: the value in the second run; None if it has none.
        first_origin: the file and line, or the argument, that set the first value.
        second_origin: the same for the second value.
    """

    kind: str
    where: str
    name: str
    first: Any
    second: Any
    first_origin: str = ""
    second_origin: str = ""


def differences(first: str, second: str) -> list[Difference]:
    """List the differences between two runs.

    Settings that neither run sets are not compared: their defaults differ only if the versions of palm do.

    Args:
        first: the folder of a run, its `save_path`.
        second: the folder of another run.

    Raises:
        StorageError: a folder has no history.
    """
    one = read_run(first)
    other = read_run(second)
    found = (_compared(kind, facts_of(one), facts_of(other)) for kind, (_, facts_of) in KINDS.items())
    return list(chain.from_iterable(found))


def _compared(kind: str, first: FactsByPlace, second: FactsByPlace) -> Iterator[Difference]:
    for where, name in {**first, **second}:
        mine, its = (_as_value(facts.get((where, name))) for facts in (first, second))
        if mine.value != its.value:  # otherwise only the origin differs
            yield Difference(kind, where, name, mine.value, its.value, mine.origin, its.origin)


def _as_value(fact: Any) -> Value:
    return fact if isinstance(fact, Value) else Value("", fact)


def _settings(run: Run) -> FactsByPlace:
    return {
        ("" if title == "global" else title, value.name): value
        for title, values in run.sections.items()
        for value in values
        if value.name != FOLDER
    }


def data_of(run: Run) -> FactsByPlace:
    """Return the rows that a run was trained on, their digests, and the files that its models recorded."""
    found: FactsByPlace = {}
    for task, plan in run.history.start.tasks.items():
        found[task, "training rows"] = plan.rows
    file = run.folder / RECORD  # of a run that a configuration made
    for task, facts in (read_record(file, RunRecord)["identity"]["tasks"] if file.exists() else {}).items():
        if isinstance(train := facts.get("train_file"), Mapping):
            found[task, "digest of the encoded rows"] = train.get("digest")
    for model in run.models:
        training = verified_object(model.folder, DESCRIPTION).get("training") or {}
        for name, file in (training.get("data") or {}).items():
            found[model.task, f"rows of {name}"] = file.get("rows")
            found[model.task, f"SHA-256 of {name}"] = file.get("sha256")
    return found


def _versions(run: Run) -> FactsByPlace:
    start = run.history.start
    by_name = {**run.versions, "device": start.device, "precision": start.precision}
    return {("", name): value for name, value in by_name.items()}


def _steps(run: Run) -> FactsByPlace:
    history = run.history
    end = history.end
    found: FactsByPlace = {("", "end"): end and f"{end.reason} at {end.step}"}
    for task, plan in history.start.tasks.items():
        found[task, "planned steps"] = plan.expected_steps
        found[task, "steps"] = history.task_steps[task]
    return found


def _scores(run: Run) -> FactsByPlace:
    """Return the last and the best scores of every task; the best evaluation is the one the run chose."""
    found: FactsByPlace = {}
    for evaluation in run.history.evaluations:
        for task, scores in evaluation.scores.items():
            for metric, score in scores.items():
                for which in ("last", "best") if task in evaluation.best else ("last",):
                    found[task, f"{metric}, {which}"] = None if math.isnan(score) else score
    return found


KINDS: dict[str, tuple[str, Callable[[Run], FactsByPlace]]] = {
    "setting": ("Settings", _settings),
    "data": ("Data", data_of),
    "version": ("Versions", _versions),
    "steps": ("Steps", _steps),
    "score": ("Scores", _scores),
}
"""Kind of a difference -> its heading in the table, and the facts of a run that are compared."""

MOST_CHARACTERS = 48
"""Maximum characters of a value in the table."""


def difference_table(found: list[Difference], first: str, second: str) -> str:
    """Format a table for each kind of difference."""
    if not found:
        return f"no differences between {first} and {second}"
    lines: list[str] = []
    for kind, group in groupby(found, key=lambda each: each.kind):
        rows = [(KINDS[kind][0], first, second, "")]
        for each in group:
            name = f"  {each.where}: {each.name}" if each.where else f"  {each.name}"
            one = each.first
            other = each.second
            are_numbers = all(isinstance(value, (int, float)) for value in (one, other))
            change = f"{other - one:+.4f}" if kind == "score" and are_numbers else ""
            by_name = _shown(kind, one, each.first_origin), _shown(kind, other, each.second_origin)
            rows.append((name, *by_name, change))
        lines += ["", *aligned(rows)]
    return "\n".join(lines[1:])


def _shown(kind: str, value: Any, origin: str) -> str:
    if value is None:
        return "-"
    text = shown_score(value) if kind == "score" else shown_value(value)
    text = text if len(text) <= MOST_CHARACTERS else f"…{text[-MOST_CHARACTERS:]}"
    return f"{text} ({origin})" if origin else text
