"""Time and memory of a run, from a few real steps of each task: its fullest batches and some usual ones."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from palm.check.planning import RunPlan
from palm.check.saving import Saving
from palm.distributed.group import exhaust
from palm.engine.run.evaluation import count_examples, model_of
from palm.engine.run.saving import save_model
from palm.engine.training.loop import Training
from palm.engine.training.task import Task
from palm.engine.watching.throughput import memory_bytes

EVALUATED = 2048
"""Dev examples that are predicted to know how long an evaluation takes."""

SETTLING = 10.0
"""Seconds of the run's own next steps, behind those that were picked."""


@dataclass(frozen=True)
class TaskPace:
    """The speed of a task.

    Args:
        task: its name.
        usual: seconds of a step on usual batches, the median.
        fullest: seconds of the step with the most tokens.
        tokens_per_second: of usual steps.
        evaluation: seconds to predict all of its dev data once; 0 without any.
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
        seconds: of the whole run: its steps, its evaluations, what it saves, what its first step
            needs once.
        training: of its steps.
        evaluating: of its evaluations.
        evaluations: how many there are.
        saving: of what it writes, as if every second evaluation were the best so far.
        starting: what the first step took beyond the others.
        memory_bytes: the most memory: of tensors on a GPU, of the process on a CPU; None where nobody tells.
        tasks: by task.
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
    """Train a few steps of each task, predict some of its dev rows, save a model; the run is spoilt by it.

    `training` is before its first step. It is evaluated `every` so many steps (0 or less: not for their sake)
    and, with `every_epoch`, at the end of every epoch of the main task.

    Raises:
        DataError: dev data that cannot be used, with its file and line.
        TrainingError: a loss that is not a number.
        ResourceError: the fullest batch does not fit.
    """
    device = training.recipe.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    first = _seconds(training, training.tasks[0], plan.tasks[0].batches.usual[0])
    paces = []
    for task, steps in zip(training.tasks, plan.tasks, strict=True):
        _seconds(training, task, steps.batches.usual[0])  # kernels are chosen, buffers made
        fullest = _seconds(training, task, steps.batches.fullest)
        usual = median(_seconds(training, task, step) for step in steps.batches.usual)
        per_step = steps.batches.tokens * steps.gradient_accumulation_steps
        evaluation = _evaluation(training, task)
        paces.append(TaskPace(task.name, usual, fullest, per_step / usual, evaluation))
    pace = _settled(training, plan, {each.task: each.usual for each in paces})
    drawn = [each.planned if each.drawn is None else each.drawn for each in plan.tasks]
    steps_time = pace * sum(count * each.usual for count, each in zip(drawn, paces, strict=True))
    evaluations = (
        num_evaluations(plan, every, every_epoch) if any(task.dev_file for task in training.tasks) else 0
    )
    evaluating = evaluations * sum(each.evaluation for each in paces)
    # Nobody knows how often a dev score will be the best so far: every second time.
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
    return len(regular) + (main.planned // main.steps_per_epoch if every_epoch else 0) + 1


def _settled(training: Training, plan: RunPlan, usual: Mapping[str, float]) -> float:
    """Train on for ten seconds; returns how many times as long the steps take as usual ones did.

    Medians of a few steps leave out what disturbs one step in ten. And what a CPU needs for bf16 grows with
    every new number of tokens: of 997 MB that a run of 828 steps had at its end, 631 MB were there after 50
    steps. In fp32, the same run stays at 348 MB.
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
    """Wait for the device."""
    if training.recipe.device.type == "cuda":
        torch.cuda.synchronize(training.recipe.device)


def _evaluation(training: Training, task: Task) -> float:
    """Seconds to predict a task's dev data, from its first examples; 0 where it has none."""
    if task.dev_file is None:
        return 0.0
    model = model_of(training, task)
    found = list(islice(task.reader.read_true(task.dev_file), EVALUATED))
    began = time.perf_counter()
    exhaust(model.steps(found, losses={}))
    _wait(training)
    return (time.perf_counter() - began) * count_examples(task) / max(1, len(found))


def _seconds_per_byte(training: Training) -> float:
    """Measure saving with a target's model in a temporary folder; 0 if there is no room for it."""
    target = next(task for task in training.tasks if task.is_target)
    size = sum(each.nbytes for part in (training.model.backbone, target.head) for each in part.parameters())
    if shutil.disk_usage(tempfile.gettempdir()).free < 3 * size:
        return 0.0
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        save_model(training, target, Path(folder) / target.name / "model")
        return (time.perf_counter() - began) / max(1, size)
