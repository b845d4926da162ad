"""Digests of every step of a run, written to disk: two runs are equal if their recordings are equal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palm.core.differences import changes, shortened
from palm.core.errors import StorageError
from palm.core.files.door import new_file, open_to_append
from palm.core.files.tensors import tensor_digests
from palm.core.files.untrusted import wrap_read_errors
from palm.core.files.write_errors import wrap_write_errors
from palm.parallel.group import is_main_process
from palm.parallel.shards import full_tensors
from palm.train.checkpoint import tensors_of
from palm.train.events import Event, Started
from palm.train.loop import Step, Training

Recording = dict[int, dict[str, Any]]
"""Global step -> its task, the digests of its batches, its loss and, for the last step, the digests of all
tensors, in the order in which they are computed."""


class EnoughSteps(Exception):  # noqa: N818 - not an error
    """Raised when a recorded run has made all requested steps."""


class Recorder:
    """An observer that writes a line of JSON immediately after every step.

    Args:
        path: the file, written by rank 0.
        last: the global step after which all tensors are recorded and `EnoughSteps` ends the run.
        killed_after: the process kills itself in the step after this one; None: never.
    """

    def __init__(self, path: Path, last: int, killed_after: int | None = None) -> None:
        self.path = path
        if is_main_process():
            with wrap_write_errors(path):
                new_file(path).close()
        self.last = last
        self.killed_after = killed_after

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.training = event.training
        if not isinstance(event, Step):
            return
        if self.killed_after is not None and event.number > self.killed_after:
            # Nothing runs after SIGKILL, neither `finally` nor an observer, as in a power failure.
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        line: dict[str, Any] = {
            "step": event.number,
            "task": " + ".join(part.task.name for part in event.parts),
        }
        batches = (batch for part in event.parts for batch in part.batches)
        line |= {f"batch {k}": tensor_digests(batch) for k, batch in enumerate(batches, start=1)}
        # As text: repr keeps every digit, and NaN equals itself.
        line["loss"] = ", ".join(repr(float(part.loss)) for part in event.parts)
        is_last = event.number == self.last
        if is_last:
            line["tensors"] = learned_digests(self.training)
        if is_main_process():
            with open_to_append(self.path) as file:
                file.write(json.dumps(line).encode() + b"\n")
        if is_last:
            raise EnoughSteps


def learned_digests(training: Training) -> dict[str, str]:
    """Return the digests of all learned tensors of a run: weights, optimizer state and averages."""
    digests: dict[str, str] = {}
    for file, tensors in tensors_of(training).items():
        found = tensor_digests(full_tensors(tensors))
        digests |= {f"{name} ({file})": digest for name, digest in found.items()}
    return digests


def read_recording(path: Path) -> Recording:
    """Read the steps that a run recorded; a later line replaces an earlier one of the same step.

    Raises:
        StorageError: no step was recorded, or a line is damaged.
    """
    with wrap_read_errors(path):
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        found = {line["step"]: line for line in map(json.loads, lines)}
    if not found:
        raise StorageError(f"{path}: the run recorded no step")
    return found


def first_difference(one: Recording, other: Recording, steps: Iterable[int]) -> str | None:
    """Describe the first difference between two recordings; None if they are equal."""
    for number in steps:
        here = one.get(number)
        there = other.get(number)
        if here is None or there is None:
            return f"global step {number}: only one of the runs reached it"
        found = list(changes(here, there))
        if not found:
            continue
        # Entries are in order of computation (batches, loss, tensors), so the first one is the cause.
        (cause, *parts), old, new = found[0]
        place = f"global step {number} (task {here['task']!r})"
        if not parts:
            return f"{place}: the {cause} is {old} in one run and {new} in the other"
        names = [change.path[-1] for change in found if change.path[0] == cause]
        return f"{place}: the runs differ in {', '.join(shortened(names, 3))} of {cause}"
    return None
