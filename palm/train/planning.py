"""The plan of a run: its steps, the tasks that each of them trains, and the horizon of the schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from palm.config.settings import TasksPerStep
from palm.core.errors import ConfigError, Problem
from palm.core.logging import logger
from palm.mixing import Mixing, TaskProgress
from palm.train.task import Task, TaskState

Expected = Callable[[float], Sequence[int]]
"""Length of the run -> the expected steps of each primary task."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The plan of a run before its first step, used by training and by everything that predicts a training.

    Args:
        tasks: the state of each task before the first step, with its expected steps.
        mixing: the strategy that draws tasks.
        tasks_per_step: number of distinct tasks that a step trains.
        max_steps: maximum number of steps; None for no limit.
    """

    tasks: Sequence[TaskProgress]
    mixing: Mixing
    tasks_per_step: TasksPerStep = 1
    max_steps: int | None = None

    @cached_property
    def primary_tasks(self) -> list[TaskProgress]:
        """The tasks that are drawn; each other task shares the rows of one of them and is trained with it."""
        return [task for task in self.tasks if task.share_rows_with is None]

    @property
    def count(self) -> int:
        """Maximum number of tasks that a step draws."""
        return len(self.primary_tasks) if self.tasks_per_step == "all" else self.tasks_per_step

    @cached_property
    def main(self) -> TaskProgress:
        """The main task: the first target, whose epochs are counted."""
        return next(task for task in self.tasks if task.is_target)

    @property
    def expected_steps(self) -> dict[str, int]:
        """Task -> its expected steps."""
        return {task.name: task.expected_steps for task in self.tasks}

    @cached_property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole run, the horizon of the learning-rate schedule."""
        return self._total([task.expected_steps for task in self.primary_tasks])

    def _total(self, expected: Sequence[int]) -> int:
        is_target = [task.is_target for task in self.primary_tasks]
        # Tasks that share rows are trained in the steps of another task, so only drawn tasks count.
        total = self.mixing.planned_updates(expected, is_target, self.count)
        return total if self.max_steps is None else min(total, self.max_steps)

    def drawn(
        self, seed: int, step: int, primary_tasks: Sequence[TaskProgress], stopped: Collection[str] = ()
    ) -> list[str]:
        """Return the tasks that global step `step`, from 0, trains, given the primary tasks' progress.

        Tasks that were stopped early are not trained; rows that several tasks share are drawn as long as one
        of these tasks is trained.
        """
        # A function of progress only, so a plan made before the run draws what the run will draw.
        trained = [task for task in self.tasks if task.name not in stopped]
        rows = {task.share_rows_with or task.name for task in trained}
        open_tasks = [task for task in primary_tasks if task.name in rows]
        chosen = {open_tasks[k].name for k in self.mixing.draw_several(seed, step, open_tasks, self.count)}
        return [task.name for task in trained if (task.share_rows_with or task.name) in chosen]

    def draws(self, seed: int) -> Iterator[list[str]]:
        """Yield the tasks of every step of the run.

        Draws are a function of the seed and the step, so this is exact unless the run stops early or its
        draws follow dev scores.
        """
        done = Counter[str]()
        primary_tasks = list(self.primary_tasks)
        targets = [task for task in self.tasks if task.is_target]
        step = 0
        while step != self.max_steps and any(done[task.name] < task.expected_steps for task in targets):
            names = self.drawn(seed, step, primary_tasks)
            yield names
            done.update(names)
            primary_tasks = [replace(t, step=done[t.name]) if t.name in names else t for t in primary_tasks]
            step += 1

    def expecting(self, expected: Expected, length: float | None) -> StepPlan:
        """Return the plan of a run of this length, or of the longest one that `max_steps` allows.

        Args:
            expected: length of the run -> expected steps of the primary tasks.
            length: length of the run, such as its epochs; None: as long as `max_steps` allows.
        """
        if self.max_steps is None:
            assert length is not None, "neither a length nor max_steps"
            steps = list(expected(length))
        else:
            steps = self._longest(expected, length, self.max_steps)
        by_primary = {task.name: count for task, count in zip(self.primary_tasks, steps, strict=True)}
        tasks = [
            replace(task, expected_steps=by_primary[task.share_rows_with or task.name]) for task in self.tasks
        ]
        return replace(self, tasks=tasks)

    def over_epochs(self, num_epochs: float | None, reference: str | None = None) -> StepPlan:
        """Return the plan of a run whose length is counted in epochs of one task.

        Args:
            num_epochs: passes over the data of `reference`; None: as many as `max_steps` allows.
            reference: the task whose epochs are counted; the main task by default.

        Raises:
            ConfigError: the mixing strategy does not suit this run.
        """
        tasks = self.primary_tasks
        counted = next(task for task in self.tasks if task.name == (reference or self.main.name))
        # A task that shares rows has as many steps per epoch as the task whose rows it shares.
        place = [task.name for task in tasks].index(counted.share_rows_with or counted.name)
        return self.expecting(lambda epochs: self.mixing.expected_steps(tasks, place, epochs), num_epochs)

    def over_own_epochs(self, num_epochs: Mapping[str, int | None]) -> StepPlan:
        """Return the plan of a run in which every task has its own number of epochs.

        Args:
            num_epochs: task -> passes over its data; None: one, or as many as `max_steps` allows.
        """
        whole = [(num_epochs[task.name] or 1) * task.steps_per_epoch for task in self.primary_tasks]
        is_endless = self.max_steps is not None and None in num_epochs.values()
        return self.expecting(lambda part: [int(part * n) for n in whole], None if is_endless else 1.0)

    def _longest(self, expected: Expected, length: float | None, max_steps: int) -> list[int]:
        unlimited = replace(self, max_steps=None)

        def total(at: float) -> int:
            try:
                return unlimited._total(expected(at))
            except ConfigError:  # too short for the strategy; the error is raised only for the final length
                return 0

        # Strategies round and have bounds, so the length is found by bisection; 60 halvings exhaust a double.
        high = 1.0 if length is None else length
        while length is None and total(high) <= max_steps:
            high *= 2
        if total(high) <= max_steps:
            return list(expected(high))
        low = 0.0
        for _ in range(60):
            middle = (low + high) / 2
            if total(middle) <= max_steps:
                low = middle
            else:
                high = middle
        return unlimited._fill_up(list(expected(low)), expected(high), max_steps)

    def _fill_up(self, steps: list[int], longer: Sequence[int], max_steps: int) -> list[int]:
        """Give the remaining steps to the first tasks that would get one in a longer run."""
        for k, more in enumerate(longer):
            tried = [*steps[:k], more, *steps[k + 1 :]]
            if self._total(tried) <= max_steps:
                steps = tried
        return steps


def expect(tasks: Sequence[TaskState], plan: StepPlan) -> None:
    """Set the expected steps of all tasks, and log the plan.

    Raises:
        TrainingError: a target would have no steps.
    """
    for task in tasks:
        task.expect(plan.expected_steps[task.name])
    if plan.total_steps == plan.max_steps:
        logger.info("max_steps: the run ends after %d steps.", plan.max_steps)
    logger.info("Estimated overall train steps %d.", plan.total_steps)


def step_problems(tasks_per_step: TasksPerStep, balance: str | None, tasks: Sequence[Task]) -> list[Problem]:
    """Check `tasks_per_step` and the name of `balance` against the tasks of a run."""
    names = {task.name for task in tasks}
    # A `share_rows_with` that names the task itself or no task is reported elsewhere.
    drawn = [task for task in tasks if task.share_rows_with not in names - {task.name}]
    if tasks_per_step == "all":
        together = len(tasks)
    elif isinstance(tasks_per_step, int) and 1 <= tasks_per_step <= len(drawn):
        together = tasks_per_step + len(tasks) - len(drawn)
    else:
        text = (
            f"tasks_per_step should be an integer from 1 to {len(drawn)}, the number of drawn tasks, "
            f"or all, not {tasks_per_step!r}"
        )
        return [Problem(text, "tasks_per_step")]
    if balance is None or together >= 2:
        return []
    text = (
        f"balance: {balance} weights the tasks of a step, and here a step has only one; set "
        "tasks_per_step to 2 or more, or all, or leave balance out"
    )
    return [Problem(text, "balance")]
