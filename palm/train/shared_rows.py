"""Tasks with the same rows and different labels: the rows are drawn and encoded once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch

from palm.core.checks import raise_any
from palm.core.errors import DataError, Problem
from palm.core.registry import did_you_mean
from palm.reader.rows.collate import SEQUENCE_ATTR
from palm.train.task import Task, TaskState


def sharing_problems(tasks: Sequence[Task]) -> list[Problem]:
    """Check `share_rows_with` of all tasks before any data is read; return a sentence per problem."""
    by_name = {task.name: task for task in tasks}
    problems: list[Problem] = []

    def add(task: Task, text: str) -> None:
        problems.append(Problem(f"task {task.name!r}: share_rows_with {text}", "share_rows_with", task.name))

    for task in tasks:
        if (named := task.share_rows_with) is None:
            continue
        if named == task.name:
            add(task, "names the task itself; remove it")
            continue
        if (primary := by_name.get(named)) is None:
            hint = did_you_mean(named, by_name)
            add(task, f"names {named!r}; known: {', '.join(by_name)}{hint}")
            continue
        if (other := primary.share_rows_with) is not None:
            add(task, f"names {named!r}, which itself shares rows; name {other!r} instead")
        for name in ("batch_size", "max_tokens_per_batch", "gradient_accumulation_steps", "shuffle"):
            if (own := getattr(task, name)) != (its := getattr(primary, name)):
                add(task, f"{named!r}, but {name} is {own!r}, not {its!r}; make both equal")
        if task.head.copies != primary.head.copies:
            add(task, f"{named!r}, but only one of them has r_drop; set it for both or neither")
    return problems


def share_rows(tasks: Sequence[TaskState]) -> None:
    """Replace the streams of tasks that share rows by those of the tasks they name; all streams are open.

    Raises:
        ConfigError: the problems that `sharing_problems` finds.
        DataError: the rows differ; the first different one is named.
    """
    raise_any(sharing_problems([task.task for task in tasks]))
    by_name = {task.name: task for task in tasks}
    for task in tasks:
        if task.task.share_rows_with is None:
            continue
        primary = by_name[task.task.share_rows_with]
        _check_same_rows(task, primary)
        # The primary task's batches and order, with the task's own labels. The copy is shallow: both streams
        # share the partition into batches and the cache of orders.
        stream = copy.copy(primary.stream)
        stream.task = task.stream.task
        stream.reader = task.stream.reader
        stream.rows = task.stream.rows
        task.stream = stream
        # The rows are equal, so one batch shows whether the readers treat them the same way.
        _check_same_tensors(task, primary)


def _check_same_tensors(task: TaskState, primary: TaskState) -> None:
    one, other = (each.stream.batch(0) for each in (task, primary))
    for name in SEQUENCE_ATTR:
        if name in one and name in other and not torch.equal(one[name], other[name]):
            raise DataError(
                f"task {task.name!r} shares the rows of {primary.name!r}, but their readers make different "
                f"{name}; give both readers the same settings, and do not share rows with mlm"
            )


def _check_same_rows(task: TaskState, primary: TaskState) -> None:
    ours = task.stream.rows
    theirs = primary.stream.rows
    begins = f"task {task.name!r} shares the rows of {primary.name!r}, but"
    if len(ours) != len(theirs):
        raise DataError(
            f"{begins} it has {len(ours)} rows, not {len(theirs)}; give both the same texts in the same "
            "order, with an empty label (missing_labels: True) where a task has none"
        )
    one = ours["token_ids"]
    other = theirs["token_ids"]
    same = np.array_equal(one.lengths, other.lengths) and np.array_equal(one.values, other.values)
    if not same:
        row = next(k for k in range(len(ours)) if not np.array_equal(one[k], other[k]))
        raise DataError(
            f"{begins} row {row + 1} has other tokens ({len(one[row])} and {len(other[row])} of them); give "
            "both the same texts in the same order, and readers with the same vocabulary and max_seq_len; if "
            "the row is longer than max_seq_len, increase that for both: readers may truncate differently"
        )
