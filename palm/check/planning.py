"""A readable plan of a run: steps, draws, learning rate and padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palm.train.loop import Training
from palm.train.stream import TaskStream
from palm.train.task import Task

MOST_DRAWS = 200_000
"""Maximum number of steps for which the tasks are drawn; a longer run has expected draws."""

MOST_BATCHES = 2_000
"""Maximum number of batches of a task to inspect for their tokens."""

MEASURED = 8
"""Number of typical steps of a task to measure."""

RATE_POINTS = 60
"""Number of points of the learning-rate curve."""


@dataclass(frozen=True)
class Batches:
    """The rows and tokens in the batches of a task.

    Args:
        rows: rows per batch, on average.
        tokens: tokens per batch, on average, without padding.
        padding: fraction of its positions that are padding.
        fullest: the step, from 0, with the most tokens.
        usual: steps with about the average number of tokens.
    """

    rows: float
    tokens: float
    padding: float
    fullest: int
    usual: Sequence[int]


@dataclass(frozen=True)
class TaskSteps:
    """A task's part of the run; JSON-ready.

    Args:
        task: the task's name.
        is_target: True for a target, which gets an exact number of steps.
        rows: training rows.
        gradient_accumulation_steps: batches per step.
        steps_per_epoch: steps of one pass over its rows.
        planned: its planned steps.
        drawn: its steps at the end of the run, drawn in advance; None if draws depend on dev scores, or the
            run has more than `MOST_DRAWS` steps.
        epochs: the resulting passes over its own rows.
        batches: rows and tokens in its batches.
    """

    task: str
    is_target: bool
    rows: int
    gradient_accumulation_steps: int
    steps_per_epoch: int
    planned: int
    drawn: int | None
    epochs: float
    batches: Batches


@dataclass(frozen=True)
class RunPlan:
    """The whole run.

    Args:
        tasks: the part of each task.
        total_planned: the sum of the planned steps, which is the horizon of the learning rate.
        total_drawn: the steps of the run; None as in `TaskSteps`.
        main: the main task, the first target, of which epochs are counted.
        num_epochs: passes over the rows of the main task.
        rates: (global step from 1, learning rate), about 60 points.
        epoch_ends: global steps that end an epoch of the main task, if draws are known.
        packs: True if the encoder computes only real tokens, so that padding costs nothing.
    """

    tasks: Sequence[TaskSteps]
    total_planned: int
    total_drawn: int | None
    main: str
    num_epochs: float
    rates: Sequence[tuple[int, float]]
    epoch_ends: Sequence[int]
    packs: bool

    @property
    def steps(self) -> int:
        """Steps of the run: drawn if known, otherwise planned."""
        return self.total_planned if self.total_drawn is None else self.total_drawn


def plan_of(training: Training) -> RunPlan:
    """Return the plan of a run from its first step on."""
    mixing = training.recipe.mixing
    epoch_ends: Sequence[int] = []
    drawn: Mapping[str, int] | None = None
    steps: int | None = None
    if not mixing.follows_scores and training.total_steps <= MOST_DRAWS:
        drawn, steps, epoch_ends = draws_of(training)
    elif not mixing.follows_scores and mixing.mixing_draws == "planned":
        drawn = training.plan.expected_steps
        steps = training.total_steps
    tasks = [_task_steps(task, None if drawn is None else drawn[task.name]) for task in training.tasks]
    total = training.total_steps
    last = total if steps is None else steps
    # The peak may lie between the points of the curve.
    places = np.linspace(0, max(last - 1, 0), 2000).astype(int).tolist()
    factors = {step: training.recipe.schedule(step) for step in places}
    points = [*factors][:: -(-len(factors) // RATE_POINTS)]
    points = sorted({*points, max(factors, key=lambda step: factors[step]), max(factors)})
    rate = max(training.base_rates)
    main = training.plan.main
    return RunPlan(
        tasks=tasks,
        total_planned=total,
        total_drawn=steps,
        main=main.name,
        num_epochs=round(main.expected_steps / main.steps_per_epoch, 2),
        rates=[(step + 1, rate * factors[step]) for step in points],
        epoch_ends=epoch_ends,
        packs=training.model.backbone.is_packed,
    )


def draws_of(training: Training) -> tuple[Counter[str], int, list[int]]:
    """Draw the tasks of the whole run.

    Returns:
        Task -> number of its steps; number of steps of the run; steps, from 1, that end an epoch of the main
        task.
    """
    main = training.plan.main
    done = Counter({task.name: 0 for task in training.tasks})
    epoch_ends: list[int] = []
    number = 0
    for number, names in enumerate(training.plan.draws(training.recipe.seed), start=1):
        done.update(names)
        if main.name in names and done[main.name] % main.steps_per_epoch == 0:
            epoch_ends.append(number)
    return done, number, epoch_ends


def _task_steps(task: Task, drawn: int | None) -> TaskSteps:
    assert task.stream is not None
    steps = task.expected_steps if drawn is None else drawn
    return TaskSteps(
        task=task.name,
        is_target=task.is_target,
        rows=len(task.stream.rows),
        gradient_accumulation_steps=task.gradient_accumulation_steps,
        steps_per_epoch=task.steps_per_epoch,
        planned=task.expected_steps,
        drawn=drawn,
        epochs=round(steps / task.steps_per_epoch, 2),
        batches=_batches(task.stream, task.gradient_accumulation_steps, steps),
    )


def _batches(stream: TaskStream, per_step: int, steps: int) -> Batches:
    """Measure the batches that a task will see, up to `MOST_BATCHES`."""
    count = max(1, min(steps, MOST_BATCHES // per_step))
    lengths = stream.rows.lengths
    rows, tokens, places = np.zeros((3, count))
    for step in range(count):
        for number in range(step * per_step, (step + 1) * per_step):
            here = lengths[[row for _, row in stream.picks(number)]]
            rows[step] += len(here)
            tokens[step] += here.sum()
            places[step] += len(here) * here.max()
    by_nearness = np.argsort(np.abs(tokens - tokens.mean()), kind="stable")
    return Batches(
        rows=round(float(rows.mean()) / per_step, 1),
        tokens=round(float(tokens.mean()) / per_step, 1),
        padding=round(1 - float(tokens.sum() / places.sum()), 4),
        fullest=int(np.argmax(tokens)),
        usual=by_nearness[:MEASURED].tolist(),
    )
