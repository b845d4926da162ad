"""What happens in a run, as values: one stream of events, and observers that it is told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palm.engine.training.loop import Training


class Event:
    """Something that happened in a run; `palm.engine.training.loop.Step` is one too."""


Observer = Callable[[Any], object]
"""Called with every event. It changes nothing of the training; what it answers that is an event, or a list
of events, is told to all observers before the next of them hears what it answered to."""


def tell(event: Event, observers: Sequence[Observer]) -> None:
    """Tell an event to all observers in order, and the events that they answer with, at once."""
    for observe in observers:
        answers = observe(event)
        for answer in answers if isinstance(answers, list) else (answers,):
            if isinstance(answer, Event):
                tell(answer, observers)


@dataclass(frozen=True)
class Started(Event):
    """The run is about to make its first step, or to go on.

    Args:
        training: the run; `training.step` is where it goes on from.
        folder: where it writes; None where it writes nothing.
        configuration: the settings that it was made from, as resolved; empty where there are none.
        resumed_from: the checkpoint that it goes on from.
    """

    training: Training
    folder: Path | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: Path | None = None


@dataclass(frozen=True)
class Logged(Event):
    """The numbers of a step that is logged; all of them are fetched from the device together, once.

    Args:
        step: global step, from 1.
        task: the task that was drawn; of several in one step, each is logged.
        task_step: how many steps it has had.
        step_of_epoch: the same within its epoch, from 1.
        steps_per_epoch: how many an epoch of it has.
        epoch: of the task, from 0.
        loss: of this step's batch.
        mean_loss: the task's running mean, over some 50 of its steps.
        learning_rate: the rate of the update.
        grad_norm: the norm of the gradient before clipping.
        rows: of all tasks and devices, since the run began.
        tokens: the same, padding not counted.
        seconds: since the run began, earlier parts of a resumed run included.
        remaining: seconds until the planned end, at the speed so far.
        steps_per_second: since the last logged step; evaluations and savings count as well.
        rows_per_second: likewise.
        tokens_per_second: likewise.
        memory_bytes: the most that tensors took on the GPU so far; the process's on a CPU; None if unknown.
    """

    step: int
    task: str
    task_step: int
    step_of_epoch: int
    steps_per_epoch: int
    epoch: int
    loss: float
    mean_loss: float
    learning_rate: float
    grad_norm: float
    rows: int
    tokens: int
    seconds: float
    remaining: float
    steps_per_second: float
    rows_per_second: float
    tokens_per_second: float
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Evaluated(Event):
    """One evaluation.

    Args:
        step: the global step after which it took place.
        scores: task -> its scores by name, those of the deciding metric first.
        dev_loss: task -> mean loss of its dev rows, where the rows of prediction are those of training.
        best: the tasks for which it is the best so far.
    """

    step: int
    scores: Mapping[str, Mapping[str, float]]
    dev_loss: Mapping[str, float] = field(default_factory=dict)
    best: Sequence[str] = ()


@dataclass(frozen=True)
class Saved(Event):
    """Something was saved.

    Args:
        step: the global step.
        kind: target, best, best_overall, on_the_way or checkpoint.
        path: the directory.
        task: whose model it is; None for a checkpoint.
    """

    step: int
    kind: str
    path: Path
    task: str | None = None


@dataclass(frozen=True)
class Warned(Event):
    """palm warned of something, after a global step."""

    step: int
    message: str


@dataclass(frozen=True)
class Completed(Event):
    """The last step was made; who has something to evaluate or to save at the end does it now."""

    step: int


@dataclass(frozen=True)
class Ended(Event):
    """Nothing more comes.

    Args:
        step: the last global step.
        reason: finished; interrupted (by a signal or Ctrl-C); or stopped (by an error).
    """

    step: int
    reason: str
