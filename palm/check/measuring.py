"""Time and memory of a run, from a few real steps of each task: its fullest batches and typical ones."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from palm.check.planning import RunPlan
from palm.check.saving import Saving
from palm.parallel.group import exhaust
from palm.train.evaluation import load_dev_data, model_of
from palm.train.loop import Training
from palm.train.saving import save_model
from palm.train.task import Task
from palm.train.throughput import memory_bytes

EVALUATED = 2
"""Number of chunks of dev examples to predict for the time of an evaluation."""

SETTLING = 10.0
"""Seconds of consecutive steps of the run after the selected ones."""


@dataclass(frozen=True)
class TaskPace:
    """The speed of a task.

    Args:
        task: the task's name.
        usual: seconds of a step on typical batches, the median.
        fullest: seconds of the step with the most tokens.
        tokens_per_second: speed of typical steps.
        evaluation: seconds to predict all its dev data once; 0 if it has none.
    """

    task: str
    usual: float
    fullest: float
    tokens_per_second: float
    evaluation: float


@dataclass(frozen=True)
class Cost:
    """Time and memory of a run.

    Args:
        seconds: the whole run: steps, evaluations, saving, and the extra time of the first step.
        training: seconds of its steps.
        evaluating: seconds of its evaluations.
        evaluations: number of evaluations.
        saving: seconds of saving, if every second evaluation is the best so far.
        starting: extra seconds of the first step.
        memory_bytes: peak memory, of tensors on a GPU or of the process on a CPU; None if unknown.
        tasks: the speed of each task.
    """

    seconds: float
    training: float
    evaluating: float
    evaluations: int
    saving: float
    starting: float
    memory_bytes: int | None
    tasks: Sequence[TaskPace]


def measured(training: Training, plan: RunPlan, saving: Saving, every: int, every_epoch: bool) -> Cost:
    """Train a few steps of each task, predict some of its dev rows, and save a model.

    `training` has not begun, and cannot be used afterwards. It is evaluated `every` so many steps (not if
    0 or less) and, with `every_epoch`, at the end of every epoch of the main task.

    Raises:
        DataError: dev data cannot be used; with file and line.
        TrainingError: a loss is NaN.
        ResourceError: the fullest batch does not fit into memory.
    """
    device = training.recipe.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    first = _seconds(training, training.tasks[0], plan.tasks[0].batches.usual[0])
    paces = []
    for task, steps in zip(training.tasks, plan.tasks, strict=True):
        _seconds(training, task, steps.batches.usual[0])  # warm-up: kernels are selected, buffers allocated
        fullest = _seconds(training, task, steps.batches.fullest)
        usual = median(_seconds(training, task, step) for step in steps.batches.usual)
        per_step = steps.batches.tokens * steps.gradient_accumulation_steps
        evaluation = _evaluation(training, task)
        paces.append(TaskPace(task.name, usual, fullest, per_step / usual, evaluation))
    pace = _relative_pace(training, plan, {each.task: each.usual for each in paces})
    drawn = [each.planned if each.drawn is None else each.drawn for each in plan.tasks]
    steps_time = pace * sum(count * each.usual for count, each in zip(drawn, paces, strict=True))
    has_dev = any(task.dev_file for task in training.tasks)
    evaluations = num_evaluations(plan, every, every_epoch) if has_dev else 0
    evaluating = evaluations * sum(each.evaluation for each in paces)
    # How often a dev score is the best so far is unknown; assume every second time.
    best = max(1.0, evaluations / 2)
    size = sum(best * place.bytes if place.written is None else place.written for place in saving.places)
    writing = size * _seconds_per_byte(training)
    starting = max(0.0, first - paces[0].usual)
    return Cost(
        seconds=steps_time + evaluating + writing + starting,
        training=steps_time,
        evaluating=evaluating,
        evaluations=evaluations,
        saving=writing,
        starting=starting,
        memory_bytes=memory_bytes(device),
        tasks=paces,
    )


def num_evaluations(plan: RunPlan, every: int, every_epoch: bool) -> int:
    """Count the evaluations of a run, including the one after its last step."""
    regular = range(every, plan.steps + 1, every) if every > 0 else ()
    if plan.epoch_ends or not every_epoch:
        return len({*regular, *(plan.epoch_ends if every_epoch else ()), plan.steps})
    main = next(each for each in plan.tasks if each.task == plan.main)
    return len(regular) + main.planned // main.steps_per_epoch + 1


def _relative_pace(training: Training, plan: RunPlan, usual: Mapping[str, float]) -> float:
    """Train for ten more seconds; return the time of the steps relative to typical ones.

    The median of a few steps misses what slows down one step in ten. Also, memory for bf16 on a CPU grows
    with every new number of tokens: a run of 828 steps needed 631 MB after 50 steps and 997 MB at its end. In
    fp32, the same run stays at 348 MB.
    """
    expected = 0.0
    began = time.perf_counter()
    while time.perf_counter() < began + SETTLING and training.step < plan.steps:
        expected += sum(usual[part.task.name] for part in training.next_step().parts)
    return (time.perf_counter() - began) / expected if expected else 1.0


def _seconds(training: Training, task: Task, step: int) -> float:
    batches = task.batches(step)
    _wait(training)
    began = time.perf_counter()
    training.step_on([(task, batches)])
    _wait(training)
    return time.perf_counter() - began


def _wait(training: Training) -> None:
    """Wait until the device is idle."""
    if training.recipe.device.type == "cuda":
        torch.cuda.synchronize(training.recipe.device)


def _evaluation(training: Training, task: Task) -> float:
    """Estimate the seconds to predict a task's dev data from its first examples; 0 if it has none."""
    if task.dev_file is None:
        return 0.0
    dev = load_dev_data(task)
    chunks = dev.chunks[:EVALUATED]
    began = time.perf_counter()
    exhaust(model_of(training, task).predictions(chunks, with_gold=True, losses={}))
    _wait(training)
    found = sum(len(chunk.examples) for chunk in chunks)
    return (time.perf_counter() - began) * dev.num_examples / max(1, found)


def _seconds_per_byte(training: Training) -> float:
    """Measure saving with a target's model in a temporary folder; 0 if the disk has no room for it."""
    target = next(task for task in training.tasks if task.is_target)
    size = sum(each.nbytes for part in (training.model.backbone, target.head) for each in part.parameters())
    if shutil.disk_usage(tempfile.gettempdir()).free < 3 * size:
        return 0.0
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        save_model(training, target, Path(folder) / target.name / "model")
        return (time.perf_counter() - began) / max(1, size)
