"""Time and memory of a run, from its fullest batches and its first steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from palm.check.planning import RunPlan
from palm.parallel.group import exhaust
from palm.train.display import memory_bytes
from palm.train.evaluation import load_dev_data, model_of
from palm.train.loop import Training
from palm.train.task import TaskState

EVALUATED = 2
"""Number of chunks of dev examples to predict for the time of an evaluation."""

SETTLING = 10.0
"""Seconds of steps of the run: fewer miss what slows down one step in ten, and the memory that bf16 on a CPU
needs for every new number of tokens."""


@dataclass(frozen=True)
class Cost:
    """Time and memory of a run.

    Args:
        step: seconds of a step, on average.
        training: seconds of all steps.
        evaluating: seconds of all evaluations.
        evaluations: about how many evaluations there are.
        fullest: task -> seconds of its step with the most tokens.
        memory_bytes: peak memory, of tensors on a GPU or of the process on a CPU; None if unknown.
    """

    step: float
    training: float
    evaluating: float
    evaluations: int
    fullest: Mapping[str, float]
    memory_bytes: int | None

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return self.training + self.evaluating


def measured(training: Training, plan: RunPlan, every: int, every_epoch: bool) -> Cost:
    """Train the fullest batches and some steps of the run, and predict some dev rows of each task.

    `training` has not begun, and cannot be used afterwards. It is evaluated `every` so many steps (not if
    0 or less) and, with `every_epoch`, at the end of every epoch of the main task.

    Raises:
        DataError: dev data cannot be used; with file and line.
        TrainingError: a loss is NaN.
        ResourceError: the fullest batch does not fit into memory.
    """
    device = training.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    fullest = {}
    for task, steps in zip(training.tasks, plan.tasks, strict=True):
        training.step_on([(task, task.batches(0))])  # warm-up: kernels are selected, buffers allocated
        _wait(training)
        began = time.perf_counter()
        training.step_on([(task, task.batches(steps.fullest))])
        _wait(training)
        fullest[task.name] = time.perf_counter() - began
    step = _seconds_per_step(training, plan)
    of_evaluation = sum(
        _evaluation(training, task) for task in training.tasks if task.task.dev_file is not None
    )
    evaluations = num_evaluations(plan, every, every_epoch) if of_evaluation else 0
    return Cost(
        step=step,
        training=step * plan.steps,
        evaluating=of_evaluation * evaluations,
        evaluations=evaluations,
        fullest=fullest,
        memory_bytes=memory_bytes(device),
    )


def num_evaluations(plan: RunPlan, every: int, every_epoch: bool) -> int:
    """Estimate the number of evaluations of a run: at intervals, after epochs, and after its last step."""
    main = next(each for each in plan.tasks if each.task == plan.main)
    epochs = (main.drawn or main.planned) // main.steps_per_epoch if every_epoch else 0
    ends_with_epoch = every_epoch and epochs * main.steps_per_epoch == main.drawn
    return (plan.steps // every if every > 0 else 0) + epochs + (not ends_with_epoch)


def _seconds_per_step(training: Training, plan: RunPlan) -> float:
    """Train for up to ten seconds; return the mean duration of a step, 0 if the run has none left."""
    before = training.step
    began = time.perf_counter()
    while time.perf_counter() < began + SETTLING and training.step < plan.steps and not training.is_over:
        training.next_step()
    _wait(training)
    return (time.perf_counter() - began) / max(1, training.step - before)


def _wait(training: Training) -> None:
    """Wait until the device is idle."""
    if training.device.type == "cuda":
        torch.cuda.synchronize(training.device)


def _evaluation(training: Training, task: TaskState) -> float:
    """Estimate the seconds to predict a task's dev data from its first chunks."""
    dev = load_dev_data(task)
    chunks = dev.chunks[:EVALUATED]
    began = time.perf_counter()
    exhaust(model_of(training, task.task).predictions(chunks, with_gold=True, losses={}))
    _wait(training)
    found = sum(len(chunk.examples) for chunk in chunks)
    return (time.perf_counter() - began) * dev.num_examples / max(1, found)
