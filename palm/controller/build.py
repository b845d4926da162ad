"""From a plan to the components of a run, constructed and wired; what does not fit is in one report."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from palm.backbone import Backbone
from palm.balance import Balance
from palm.controller.plan import Plan, TaskPlan
from palm.controller.settings import RunSettings
from palm.core.errors import ConfigError, PalmError
from palm.core.logging import logger
from palm.downloader import pretrained_directory
from palm.engine.training.build import build_optimizer
from palm.engine.training.model import MultiTaskModel
from palm.engine.training.planning import StepPlan, expect, plan_epochs, step_problems
from palm.engine.training.shared_rows import share_rows, sharing_problems
from palm.engine.training.task import Task, wiring_problems
from palm.lr_sched import schedule_of_run
from palm.mixing import Mixing
from palm.optimizer import Optimizer, ParameterGroups
from palm.paradigm import Head
from palm.pretrained.library import directory_pooling
from palm.reader.rows.cache import DataCache

T = TypeVar("T")

Place = Callable[[str, str | None], str | None]
"""`Config.place`."""


@dataclass(frozen=True)
class Parts:
    """The components of a training run, wired and checked."""

    settings: RunSettings
    backbone: Backbone
    optimizer: Optimizer
    groups: ParameterGroups
    schedule: dict[str, Any]
    mixing: Mixing
    balance: Balance | None
    tasks: list[Task]


def build(plan: Plan, place: Place) -> Parts:
    """Construct and wire all components of a training run.

    Args:
        plan: what the configuration says.
        place: where in the configuration a setting stands, given its name and its scope.

    Raises:
        ConfigError: what the components' own checks and the wiring found, in one report.
    """
    settings = RunSettings(**plan.settings)
    torch.manual_seed(settings.random_seed)
    problems: list[str] = []
    own = partial(_placed, place)
    if plan.backbone[1].get("pooling") == "model" and settings.pretrain_path is not None:
        folder = pretrained_directory(settings.pretrain_path)
        plan.backbone[1]["pooling"] = directory_pooling(folder)
    backbone = _built(plan.backbone, problems, partial(own, "backbone"))
    optimizer = _built(plan.optimizer, problems, partial(own, None))
    groups = _built((ParameterGroups, plan.groups), problems, partial(own, None))
    mixing = _built(plan.mixing, problems, partial(own, None))
    balance = None if plan.balance is None else _built(plan.balance, problems, partial(own, None))
    _check_schedule(settings, plan.schedule, problems, partial(own, None))
    heads = _shared_heads(plan, settings, problems, own)
    tasks = []
    for k, (task, head) in enumerate(zip(plan.tasks, heads, strict=True)):
        reader = _built(task.reader, problems, partial(own, task.name))
        if reader is not None and head is not None:
            parts = {"name": task.name, "reader": reader, "head": head, **task.task}
            parts["mix_ratio"] = 1.0 if settings.mix_ratio is None else settings.mix_ratio[k]
            parts["is_target"] = settings.target_tag is None or settings.target_tag[k] == 1
            made = _built((Task, parts), problems, partial(own, task.name))
            tasks += [] if made is None else [made]
    configured = list(tasks)
    tasks += plan.given
    if backbone is not None:
        problems += [
            own(task.name if task in configured else None, line)
            for task in tasks
            for line in wiring_problems(task, backbone)
        ]
        problems += [own(None, line) for line in sharing_problems(tasks)]
    if len(tasks) == len(plan.tasks) + len(
        plan.given
    ):  # otherwise it is told what is wrong with those that lack
        found = step_problems(settings.tasks_per_step, balance, tasks)
        problems += [own(None, line) for line in found]
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    assert backbone is not None
    assert optimizer is not None
    assert groups is not None
    assert mixing is not None
    # Tried here, so that a layer or a pattern that does not exist is reported before any data is read; but
    # only then, because torch imports its compiler for the first optimizer, seconds before an error in data.
    is_grouped = any(task.head_learning_rate is not None or task.private_layers for task in tasks)
    if is_grouped or optimizer.needs_layers or groups.settings != ParameterGroups().settings:
        try:
            build_optimizer(optimizer, groups, MultiTaskModel(backbone, tasks), tasks)
        except ConfigError as error:
            raise ConfigError(own(None, line) for line in error.problems) from None
    return Parts(settings, backbone, optimizer, groups, plan.schedule, mixing, balance, tasks)


def open_data(parts: Parts, devices: int | None = None) -> StepPlan:
    """Read the training data of all tasks, and plan their steps.

    Args:
        parts: of the run.
        devices: the number of devices that train, if not as many as there are processes.

    Raises:
        DataError: a row that cannot be used, with its file and line.
        TrainingError: too few rows for a batch.
    """
    settings, main = parts.settings, next(task for task in parts.tasks if task.is_target)
    logger.info("%s: set as main task", main.name)
    cache = None
    if settings.use_data_cache:
        cache = DataCache(settings.data_cache) if settings.data_cache else DataCache.of_user()
    for task in parts.tasks:
        task.open_stream(settings.random_seed, cache=cache, devices=devices)
        assert task.stream is not None
        logger.info("%s: %d rows of training data", task.name, len(task.stream.rows))
    share_rows(parts.tasks)
    plan = plan_epochs(
        [task.progress() for task in parts.tasks],
        parts.mixing,
        num_epochs=settings.num_epochs,
        tasks_per_step=settings.tasks_per_step,
        max_steps=settings.max_steps,
    )
    expect(parts.tasks, plan)
    return plan


def _placed(place: Place, scope: str | None, line: str) -> str:
    """A component's complaint with the place of the setting that it begins with, or else with its task."""
    title = f"task {scope!r}: " if scope not in (None, "backbone") else ""
    said = line.removeprefix(title)
    name = re.match(r"\w*", said)
    origin = place(name.group(), scope) if name and name.group() else None
    is_exact = origin is not None and (":" in origin or origin.startswith("--"))  # a dict has no lines
    return f"{origin}: {said}" if is_exact else f"{title}{said}"


def _built(
    part: tuple[type[T], dict[str, Any]], problems: list[str], placed: Callable[[str], str]
) -> T | None:
    cls, arguments = part
    try:
        return cls(**arguments)
    except PalmError as error:
        problems += [placed(line) for line in str(error).splitlines()]
    except (RuntimeError, MemoryError, OverflowError) as error:  # torch's words for sizes that no machine has
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        problems.append(placed(f"{cls.__name__} cannot be built with these sizes: {reason}"))
    return None


def _check_schedule(
    settings: RunSettings, arguments: dict[str, Any], problems: list[str], placed: Callable[[str], str]
) -> None:
    """Try the schedule's settings on a long run, so that mistakes are reported before any data is read."""
    try:
        schedule_of_run(settings.lr_scheduler, 10**6, settings.warmup_proportion, arguments)
    except ConfigError as error:
        problems += map(placed, error.problems)


def _shared_heads(
    plan: Plan, settings: RunSettings, problems: list[str], placed: Callable[[str, str], str]
) -> list[Head | None]:
    """One head per task; tasks with equal `task_reuse_tag` get the same object."""
    tags = settings.task_reuse_tag or [str(k) for k in range(len(plan.tasks))]
    first: dict[str, TaskPlan] = {}
    built: dict[str, Head | None] = {}
    for tag, task in zip(tags, plan.tasks, strict=True):
        if tag not in first:
            first[tag] = task
            built[tag] = _built(task.head, problems, partial(placed, task.name))
        elif first[tag].head != task.head:
            problems.append(
                f"tasks {first[tag].name!r} and {task.name!r} share task_reuse_tag {tag!r}, but their heads "
                f"differ: {_described(first[tag])} and {_described(task)}; give them other tags or settings"
            )
    return [built[tag] for tag in tags]


def _described(task: TaskPlan) -> str:
    cls, arguments = task.head
    return f"{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
