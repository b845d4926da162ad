"""The steps of a run, its learning rate, the sizes of its batches, and its time and memory on a few steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from palm.train.display import memory_bytes
from palm.train.loop import Training
from palm.train.task import TaskState
from palm.train.train_step import sum_of_losses

MOST_BATCHES = 2_000
"""Maximum number of batches of a task to inspect for their tokens."""

RATE_POINTS = 60
"""Number of points of the learning-rate curve."""

STARTS = 4
"""Number of first steps of each task for its loss and gradient at the initial weights."""

SETTLING = 10.0
"""Seconds of steps of the run: fewer miss what slows down one step in ten, and the memory that bf16 on a CPU
needs for every new number of tokens."""


@dataclass(frozen=True)
class TaskSteps:
    """A task's part of the run.

    Args:
        task: the task's name.
        is_target: True for a target, which gets an exact number of steps.
        rows: training rows.
        steps_per_epoch: steps of one pass over its rows.
        planned: its planned steps.
        drawn: its steps at the end of the run.
        epochs: the resulting passes over its own rows.
        rows_per_step: rows in a step, on average.
        tokens_per_step: tokens in a step, on average, without padding.
        padding: fraction of the positions in its batches that are padding.
        fullest: the step, from 0, with the most tokens.
    """

    task: str
    is_target: bool
    rows: int
    steps_per_epoch: int
    planned: int
    drawn: int
    epochs: float
    rows_per_step: float
    tokens_per_step: float
    padding: float
    fullest: int


@dataclass(frozen=True)
class RunPlan:
    """The whole run.

    Args:
        tasks: the part of each task.
        steps: global steps of the run.
        main: the main task, the first target, of which epochs are counted.
        rates: (global step from 1, learning rate), about 60 points.
        packs: True if the encoder computes only real tokens, so that padding costs nothing.
    """

    tasks: Sequence[TaskSteps]
    steps: int
    main: str
    rates: Sequence[tuple[int, float]]
    packs: bool


def plan_of(training: Training) -> RunPlan:
    """Return the plan of a run before its first step."""
    draws = list(training.plan.draws(training.config.settings.random_seed))
    steps = len(draws)
    drawn = Counter(chain.from_iterable(draws))
    rate = max(training.base_rates)
    points = sorted({*np.linspace(0, max(steps - 1, 0), RATE_POINTS).astype(int).tolist()})
    return RunPlan(
        tasks=[_task_steps(task, drawn[task.name]) for task in training.tasks],
        steps=steps,
        main=training.plan.main.name,
        rates=[(step + 1, rate * training.schedule(step)) for step in points],
        packs=training.model.backbone.is_packed,
    )


def _task_steps(task: TaskState, steps: int) -> TaskSteps:
    """Return a task's part of the run; its first batches tell their sizes."""
    stream = task.stream
    per_step = task.task.gradient_accumulation_steps
    count = max(1, min(steps, MOST_BATCHES // per_step))
    rows, tokens, places = np.zeros((3, count))
    for number in range(count * per_step):
        lengths = stream.rows.lengths[[row for _, row in stream.picks(number)]]
        rows[number // per_step] += len(lengths)
        tokens[number // per_step] += lengths.sum()
        places[number // per_step] += len(lengths) * lengths.max()
    return TaskSteps(
        task=task.name,
        is_target=task.is_target,
        rows=len(stream.rows),
        steps_per_epoch=task.steps_per_epoch,
        planned=task.expected_steps,
        drawn=steps,
        epochs=round(steps / task.steps_per_epoch, 2),
        rows_per_step=round(float(rows.mean()), 1),
        tokens_per_step=round(float(tokens.mean()), 1),
        padding=round(1 - float(tokens.sum() / places.sum()), 4),
        fullest=int(np.argmax(tokens)),
    )


@dataclass(frozen=True)
class Cost:
    """Time and memory of a run.

    Args:
        step: seconds of a step, on average.
        training: seconds of all steps, without evaluations and saving.
        fullest: task -> seconds of its step with the most tokens.
        starts: task -> its loss and the norm of its weighted gradient on the encoder, averages of its first
            steps at the initial weights.
        memory_bytes: peak memory, of tensors on a GPU or of the process on a CPU; None if unknown.
    """

    step: float
    training: float
    fullest: Mapping[str, float]
    starts: Mapping[str, tuple[float, float]]
    memory_bytes: int | None


def measured(training: Training, plan: RunPlan) -> Cost:
    """Train the fullest batches and some steps of the run.

    `training` has not begun, and cannot be used afterwards.

    Raises:
        TrainingError: a loss is NaN.
        ResourceError: the fullest batch does not fit into memory.
    """
    device = training.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    starts = {task.name: _start(training, task) for task in training.tasks}
    fullest = {}
    for task, steps in zip(training.tasks, plan.tasks, strict=True):
        training.step_on([(task, task.batches(0))])  # warm-up: kernels are selected, buffers allocated
        began = _now(device)
        training.step_on([(task, task.batches(steps.fullest))])
        fullest[task.name] = _now(device) - began
    step = _seconds_per_step(training, plan)
    return Cost(
        step=step,
        training=step * plan.steps,
        fullest=fullest,
        starts=starts,
        memory_bytes=memory_bytes(device),
    )


def _start(training: Training, task: TaskState) -> tuple[float, float]:
    """Return a task's loss, and the norm of its gradient on the encoder, before the first step."""
    shared = list(training.model.backbone.parameters())
    training.model.train()
    losses = []
    norms = []
    for number in range(min(STARTS, max(1, task.expected_steps))):
        drawn = training.task_batches([(task, task.batches(number))])
        losses.append(float(sum_of_losses(training.replica, drawn)))
        own = [each.grad.norm() for each in shared if each.grad is not None]
        training.optimizer.zero_grad()
        norms.append(float(torch.stack(own).norm()) if own else 0.0)
    return float(np.mean(losses)), float(np.mean(norms))


def _now(device: torch.device) -> float:
    """Return the time at which the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds_per_step(training: Training, plan: RunPlan) -> float:
    """Train for up to ten seconds; return the mean duration of a step, 0 if the run has none left."""
    before = training.step
    began = time.perf_counter()
    while time.perf_counter() < began + SETTLING and training.step < plan.steps and not training.is_over:
        training.next_step()
    return (_now(training.device) - began) / max(1, training.step - before)
