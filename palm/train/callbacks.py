"""What watches a run: callbacks and the events that they see."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from palm.core.component import imported, raise_any
from palm.core.errors import PalmError
from palm.core.records import record_of

if TYPE_CHECKING:
    from palm.train.loop import Training


NOT_RECORDED: Mapping[str, Any] = {"recorded": False}
"""Metadata of a field that can be derived from others and is not part of an event's line."""


RECORDED: dict[str, type[Recorded]] = {}
"""Name in the history -> the event class."""


class Event:
    """Base class of everything that happens in a run, `palm.train.loop.Step` included."""


@dataclass(frozen=True)
class Recorded(Event):
    """Base class of the events that have a line in the history.

    Args:
        step: the global step after which it happened.

    Attributes:
        recorded_as: its name in the history.
    """

    recorded_as: ClassVar[str]
    step: int

    def __init_subclass__(cls, recorded_as: str) -> None:
        cls.recorded_as = recorded_as
        RECORDED[recorded_as] = cls

    def as_line(self) -> dict[str, Any]:
        """Return the event as JSON, without fields that are None; values that are not finite become null."""
        line: dict[str, Any] = {"event": self.recorded_as}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and each.metadata != NOT_RECORDED:
                line[each.name] = _as_json(value)
        return line


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    # JSON has no NaN or infinity; `event_of` reads null as NaN.
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return value.as_posix()
    if is_dataclass(value):
        return vars(value)
    return list(value) if isinstance(value, tuple) else value


def event_of(line: Any) -> Recorded | None:
    """Return the event of a line of a history; None if this version of palm does not know it.

    Unknown fields are ignored.

    Raises:
        ValueError: not an event with a step, or a field is missing or has the wrong type; it is named.
    """
    facts = line if isinstance(line, dict) else {}
    if not (isinstance(facts.get("step"), int) and isinstance(facts.get("event"), str)):
        raise ValueError("not an event with a step")
    kind = RECORDED.get(facts["event"])
    if kind is None:
        return None
    try:
        # Fields that are None are not recorded, so null stands for a value that is not finite.
        return record_of(kind, {name: math.nan if value is None else value for name, value in line.items()})
    except ValueError as error:
        raise ValueError(f"{line['event']!r} is damaged, {error}") from None


@dataclass(frozen=True)
class Started(Event):
    """The run is about to start or resume.

    Args:
        training: the run; `training.step` is the step it starts from.
        folder: the folder it writes to; None if it writes nothing.
        configuration: its resolved settings; empty if there are none.
        resumed_from: the checkpoint that it resumes from; None for a new run.
    """

    training: Training
    folder: Path | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: Path | None = None


@dataclass(frozen=True)
class PlannedTask:
    """The plan of one task.

    Args:
        is_target: True if it gets an exact number of steps and a saved model.
        expected_steps: number of planned steps.
        steps_per_epoch: number of steps in one pass over its rows.
        rows: number of training rows.
        mix_ratio: how often it is drawn, relative to the others.
    """

    is_target: bool = True
    expected_steps: int = 0
    steps_per_epoch: int = 0
    rows: int = 0
    mix_ratio: float = 1.0


@dataclass(frozen=True)
class Planned(Recorded, recorded_as="start"):
    """The plan of a run, the first line of its history.

    Args:
        step: the global step at which it begins.
        version: version of the file format.
        palm: version of palm.
        time: ISO 8601, UTC.
        total_steps: planned steps of the whole run.
        precision: fp32 or bf16.
        device: kind of device.
        tasks: task -> its plan, in order.
    """

    step: int = 0
    version: int = 1
    palm: str = ""
    time: str = ""
    total_steps: int = 0
    precision: str = ""
    device: str = ""
    tasks: Mapping[str, PlannedTask] = field(default_factory=dict)


@dataclass(frozen=True)
class Logged(Recorded, recorded_as="step"):
    """The values of a logged step, fetched from the device together.

    Args:
        step: global step, from 1.
        task: the drawn task; if a step has several, each is logged.
        task_step: number of the task's steps so far.
        epoch: epoch of the task, from 0.
        loss: loss of this step's batch.
        mean_loss: running mean of the task's loss, over about 50 of its steps.
        learning_rate: learning rate of the update.
        grad_norm: norm of the gradient before clipping.
        rows: rows of all tasks and devices since the run began.
        tokens: tokens of these rows, without padding.
        seconds: time since the run began, including earlier parts of a resumed run.
        memory_bytes: peak memory of tensors on the GPU, or of the process on a CPU; None if unknown.
        step_of_epoch: step of the task within its epoch, from 1.
        steps_per_epoch: steps per epoch of the task.
        remaining: seconds until the planned end, at the speed so far.
        steps_per_second: speed since the last logged step, including evaluation and saving.
        rows_per_second: the same for rows.
        tokens_per_second: the same for tokens.
    """

    step: int
    task: str
    task_step: int = 0
    epoch: int = 0
    loss: float = math.nan
    mean_loss: float = math.nan
    learning_rate: float = math.nan
    grad_norm: float = math.nan
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    memory_bytes: int | None = None
    step_of_epoch: int = field(default=0, metadata=NOT_RECORDED)
    steps_per_epoch: int = field(default=0, metadata=NOT_RECORDED)
    remaining: float = field(default=0.0, metadata=NOT_RECORDED)
    steps_per_second: float = field(default=0.0, metadata=NOT_RECORDED)
    rows_per_second: float = field(default=0.0, metadata=NOT_RECORDED)
    tokens_per_second: float = field(default=0.0, metadata=NOT_RECORDED)


@dataclass(frozen=True)
class Drawn(Recorded, recorded_as="draws"):
    """The number of steps of every task after a global step."""

    step: int
    steps: Mapping[str, int]


@dataclass(frozen=True)
class Evaluated(Recorded, recorded_as="evaluation"):
    """One evaluation.

    Args:
        step: the global step after which it took place.
        scores: task -> its scores by name, those of the deciding metric first.
        dev_loss: task -> mean loss of its dev rows; only tasks whose training and prediction rows are the
            same.
        best: tasks for which this is the best evaluation so far.
        mean: mean normalized score of the tasks of `best_by`; NaN if one is not a number.
        seconds: time since the run began; only in the history.
    """

    step: int
    scores: Mapping[str, Mapping[str, float]]
    dev_loss: Mapping[str, float] = field(default_factory=dict)
    best: Sequence[str] = ()
    mean: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Saved(Recorded, recorded_as="saved"):
    """A model or a checkpoint was saved.

    Args:
        step: the global step.
        kind: target, best, best_overall, on_the_way or checkpoint.
        path: the directory; in the history, relative to the run's folder if it is inside.
        task: the task of a model; None for a checkpoint.
    """

    step: int
    kind: str
    path: Path
    task: str | None = None


@dataclass(frozen=True)
class Warned(Recorded, recorded_as="warning"):
    """palm logged a warning after a global step."""

    step: int
    message: str


@dataclass(frozen=True)
class Completed(Event):
    """The last step is complete; callbacks that evaluate or save at the end do so now."""

    step: int


@dataclass(frozen=True)
class Ended(Recorded, recorded_as="end"):
    """No more events follow.

    Args:
        step: the last global step.
        reason: finished; interrupted (by a signal or Ctrl-C); or stopped (by an error).
        seconds: time since the run began.
    """

    step: int
    reason: str
    seconds: float = 0.0


Callback = Callable[[Any], object]
"""A callable that receives every event. It must not change the training. If it returns an event, or a list of
events, all callbacks receive these immediately, before the next callback receives the current event."""

CallbackPaths = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Dotted paths; or dotted path -> settings."""


def notify(event: Event, callbacks: Sequence[Callback]) -> None:
    """Call all callbacks with an event, in order, and immediately with the events that they return."""
    for callback in callbacks:
        answers = callback(event)
        for answer in answers if isinstance(answers, list) else (answers,):
            if isinstance(answer, Event):
                notify(answer, callbacks)


def callback_problems(callbacks: object) -> list[str]:
    """Check callbacks that were given from Python; return a sentence per problem."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        return [f"callbacks should be a list of functions or other callables, not {callbacks!r}"]
    return []


def callbacks_of(given: CallbackPaths | None, place: str = "callbacks") -> list[Callback]:
    """Import callbacks: functions, called with every event and their settings as keyword arguments, or
    classes, whose instances are made with their settings and called with every event.

    Args:
        given: the value of the setting.
        place: the place and name of the setting, for messages.

    Raises:
        ConfigError: callbacks that cannot be imported, made with these settings, or called; lists all.
    """
    if given is None:
        return []
    named = given if isinstance(given, Mapping) else {path: {} for path in given}
    found = []
    problems = []
    for path, settings in named.items():
        try:
            # The user's code runs here, so its errors are reported with the place of the setting.
            what = imported("callback", path)
            settings = settings or {}
            callback = what(**settings) if isinstance(what, type) else partial(what, **settings)
            with suppress(ValueError):  # compiled code may have no signature
                if callable(callback):
                    inspect.signature(callback).bind("event")
        except (PalmError, TypeError) as error:
            problems.append(f"{place}: {path}: {error}")
            continue
        if callable(callback):
            found.append(callback)
        else:
            problems.append(f"{place}: {path} is not callable; give the class a method __call__(self, event)")
    raise_any(problems)
    return found
