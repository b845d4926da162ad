"""The events of a run, grouped by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from palm.core.errors import StorageError
from palm.core.io import check_plain
from palm.train.callbacks import (
    HISTORY_FILE,
    Drawn,
    Ended,
    Evaluated,
    Event,
    Logged,
    Losses,
    Planned,
    PlannedTask,
    Saved,
    Warned,
    read_events,
)
from palm.train.model_paths import STAGES

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class History:
    """All events of a run in order; `end` is None while the run is active, or if it was killed."""

    start: Planned
    steps: Sequence[Logged] = ()
    draws: Sequence[Drawn] = ()
    evaluations: Sequence[Evaluated] = ()
    saved: Sequence[Saved] = ()
    warnings: Sequence[Warned] = ()
    end: Ended | None = None
    losses: Sequence[Losses] = ()

    @property
    def last_step(self) -> int:
        """The last global step of any event."""
        events = (self.steps, self.draws, self.evaluations, self.saved)
        return max((event.step for events in events for event in events), default=0)

    @property
    def seconds(self) -> float:
        """The duration of the run, up to the last logged step if it has not ended."""
        if self.end is not None:
            return self.end.seconds
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def seconds_left(self) -> float:
        """The time until the planned end at the speed so far; 0 if nothing is known."""
        step = self.steps[-1] if self.steps else None
        if step is None or not step.step:
            return 0.0
        return max(self.start.total_steps - step.step, 0) * step.seconds / step.step

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, in order."""
        return list(self.start.tasks)

    @property
    def task_steps(self) -> dict[str, int]:
        """The number of steps of every task, as far as they were recorded."""
        logged = {step.task: step.task_step for step in self.steps}
        drawn = self.draws[-1].steps if self.draws else {}
        return {task: max(logged.get(task, 0), drawn.get(task, 0)) for task in self.tasks}

    def best(self, task: str) -> Evaluated | None:
        """Return the best evaluation of a task as chosen by the run, or else its last; None without any."""
        own = [each for each in self.evaluations if each.scores.get(task)]
        return next((each for each in reversed(own) if task in each.best), own[-1] if own else None)


def read_history(run: str | Path) -> History:
    """Read the history of a run; the last line may be incomplete, as a killed run leaves it.

    Args:
        run: the run's `save_path`, or its history file.

    Raises:
        StorageError: there is no history, or a line is not an event of this version.
    """
    path = Path(run)
    if path.is_dir():
        if stages := sorted(path.glob(f"{STAGES}/*")):
            raise StorageError(f"{path} is a run in stages; name one of them, such as {stages[-1]}")
        path = path / HISTORY_FILE
        check_plain(path)
    elif path.suffix != Path(HISTORY_FILE).suffix and path.is_file():
        raise StorageError(f"{path} is not a history; name the save_path of a run of this version of palm")
    events = read_events(path)
    if not events and path.stat().st_size:
        raise StorageError(f"{path} is damaged: no event of it can be read; give another run")

    def of_kind(kind: type[E]) -> list[E]:
        return [event for event in events if isinstance(event, kind)]

    steps = of_kind(Logged)
    plan = (of_kind(Planned) or [Planned()])[-1]
    if not plan.tasks:  # the plan is missing
        plan = replace(plan, tasks={step.task: PlannedTask() for step in steps})
    ends = [event for event in events if isinstance(event, Ended | Logged)][-1:]
    return History(
        plan,
        steps,
        of_kind(Drawn),
        of_kind(Evaluated),
        of_kind(Saved),
        of_kind(Warned),
        # Steps after an end come from a run that was interrupted and resumed.
        next((event for event in ends if isinstance(event, Ended)), None),
        of_kind(Losses),
    )
