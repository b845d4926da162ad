"""`history.jsonl` as values: what a run logged, evaluated and saved, step by step."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from palm.core.errors import StorageError
from palm.engine.watching.history import FILE, VERSION

E = TypeVar("E")


@dataclass(frozen=True)
class PlannedTask:
    """What a task was to do, as the run began.

    Args:
        is_target: whether it gets an exact number of steps and a saved model.
        expected_steps: steps that were planned for it.
        steps_per_epoch: steps in one pass over its rows.
        rows: its training rows.
        mix_ratio: how often it is drawn, relative to the others.
    """

    is_target: bool = True
    expected_steps: int = 0
    steps_per_epoch: int = 0
    rows: int = 0
    mix_ratio: float = 1.0


@dataclass(frozen=True)
class Start:
    """The beginning of a run.

    Args:
        version: of the file's format.
        palm: the version of palm that ran.
        time: when, as ISO 8601 in UTC.
        total_steps: the planned steps of all tasks.
        precision: what was computed with.
        device: what it was computed on.
        tasks: task -> its plan, in order.
        versions: further programs and their versions, where the run tells.
    """

    version: int = VERSION
    palm: str = ""
    time: str = ""
    total_steps: int = 0
    precision: str = ""
    device: str = ""
    tasks: Mapping[str, PlannedTask] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LoggedStep:
    """One optimizer step that was logged; what was not a finite number is None.

    Args:
        step: global step, from 1.
        task: the task that was drawn.
        task_step: how many steps it has had.
        epoch: of the task, from 0.
        loss: of this step's batch.
        mean_loss: the task's running mean.
        learning_rate: the rate of the update.
        grad_norm: the gradient's norm before clipping.
        rows: of all tasks, since the run began.
        tokens: the same.
        seconds: since the run began.
        memory_bytes: the most that the device's tensors took so far, where the run tells.
    """

    step: int
    task: str
    task_step: int = 0
    epoch: int = 0
    loss: float | None = None
    mean_loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Draws:
    """How many steps every task has had after global step `step`."""

    step: int
    steps: Mapping[str, int]


@dataclass(frozen=True)
class Evaluated:
    """One evaluation.

    Args:
        step: the global step after which it took place.
        scores: task -> metric -> score; the deciding metric first.
        dev_loss: task -> mean loss of its dev rows.
        best: the tasks for which it was the best so far.
    """

    step: int
    scores: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    dev_loss: Mapping[str, float | None] = field(default_factory=dict)
    best: Sequence[str] = ()


@dataclass(frozen=True)
class Transferred:
    """One comparison of tasks: of their gradients, and of what a step on one does to the others' losses.

    Args:
        step: the global step after which it took place.
        cosine: task -> task -> the cosine of their gradients over the whole encoder.
        layers: layer -> the same of it.
        look_ahead: task -> task -> see `palm.engine.training.transfer.Transferred`.
        took: seconds.
    """

    step: int
    cosine: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, Mapping[str, float | None]]] = field(default_factory=dict)
    look_ahead: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    took: float = 0.0


@dataclass(frozen=True)
class Stage:
    """The beginning of a stage: after which global step, its name, and the plans of its tasks."""

    step: int
    stage: str
    total_steps: int = 0
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """A share that a stage tried of the second of two models, and the dev scores with it."""

    step: int
    share: float
    scores: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    stage: str = ""


@dataclass(frozen=True)
class Saved:
    """Something that was saved: its kind, its task where it is a task's, its path below the run's folder."""

    step: int
    kind: str
    path: str
    task: str | None = None


@dataclass(frozen=True)
class Warned:
    """A warning that the run gave."""

    step: int
    message: str


@dataclass(frozen=True)
class End:
    """How a run ended: `finished`, `interrupted` or `stopped`."""

    step: int
    reason: str
    seconds: float = 0.0


@dataclass(frozen=True)
class History:
    """All events of a run in order; `end` is None while it runs, or where it was killed."""

    start: Start
    steps: Sequence[LoggedStep] = ()
    draws: Sequence[Draws] = ()
    evaluations: Sequence[Evaluated] = ()
    transfers: Sequence[Transferred] = ()
    stages: Sequence[Stage] = ()
    merges: Sequence[Merged] = ()
    saved: Sequence[Saved] = ()
    warnings: Sequence[Warned] = ()
    end: End | None = None

    @property
    def last_step(self) -> int:
        """The last global step that anything is known of."""
        events = (self.steps, self.draws, self.evaluations, self.saved)
        return max((event.step for events in events for event in events), default=0)

    @property
    def seconds(self) -> float:
        """How long the run has taken, as far as is known."""
        if self.end is not None:
            return self.end.seconds
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, in order."""
        return list(self.start.tasks) or list(dict.fromkeys(step.task for step in self.steps))


def read_history(run: str | Path) -> History:
    """The history of a run; the last line may be cut off, as a killed run leaves it.

    Args:
        run: the run's `save_path`, or its history file.

    Raises:
        StorageError: there is none, or a line that is not an event of this version.
    """
    path = Path(run)
    path = path / FILE if path.is_dir() else path
    try:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror or error}; name the save_path of a run that this palm trained"
        ) from error
    found: dict[type, list[Any]] = {kind: [] for kind in _EVENTS.values()}
    for number, line in enumerate(lines, start=1):
        event = _event(line, f"{path}:{number}", is_last=number == len(lines))
        kind = _EVENTS.get(event.get("event"))
        if kind is not None:
            found[kind].append(_built(kind, event, f"{path}:{number}"))
        if kind is LoggedStep:
            found[End].clear()  # an interrupted run was resumed
    start = found[Start][-1] if found[Start] else Start()
    if start.version > VERSION:
        raise StorageError(f"{path} has version {start.version}, this palm reads {VERSION}; use a newer palm")
    return History(
        start,
        found[LoggedStep],
        found[Draws],
        found[Evaluated],
        found[Transferred],
        found[Stage],
        found[Merged],
        found[Saved],
        found[Warned],
        found[End][-1] if found[End] else None,
    )


_EVENTS: dict[Any, type] = {
    "start": Start,
    "step": LoggedStep,
    "draws": Draws,
    "evaluation": Evaluated,
    "transfer": Transferred,
    "stage": Stage,
    "merge": Merged,
    "saved": Saved,
    "warning": Warned,
    "end": End,
}


def _event(line: str, place: str, is_last: bool) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except json.JSONDecodeError as error:
        if is_last:
            return {}
        raise StorageError(f"{place}: not JSON ({error.msg}): {line[:60]!r}; restore the file") from None
    if not isinstance(event, dict):
        raise StorageError(f"{place}: expected an event {{...}}, not {line[:60]!r}; restore the file")
    return event


def _built(kind: type[E], event: Mapping[str, Any], place: str) -> E:
    """An event's value; fields that this palm does not know are left out."""
    names, needed = _FIELDS[kind]
    values = {name: event[name] for name in names if name in event}
    if lacking := sorted(needed - values.keys()):
        raise StorageError(f"{place}: {event['event']!r} lacks {', '.join(lacking)}; restore the file")
    if kind is Start:
        tasks = values.get("tasks", {})
        values["tasks"] = {name: _built(PlannedTask, task, place) for name, task in tasks.items()}
    return kind(**values)


_FIELDS: dict[type, tuple[list[str], set[str]]] = {
    kind: (
        [each.name for each in dataclasses.fields(kind)],
        {
            each.name
            for each in dataclasses.fields(kind)
            if each.default is each.default_factory is dataclasses.MISSING
        },
    )
    for kind in (*_EVENTS.values(), PlannedTask)
}
"""Kind -> its fields, and those that it cannot do without; once: a history may have 100 000 lines."""
