"""Construction and wiring of all components of a run from its plan, with all problems in one report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from palm.backbone import Backbone
from palm.controller.plan import Plan, TaskPlan
from palm.controller.settings import RunSettings
from palm.core.checks import raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.logging import logger
from palm.lr_sched import schedule_of_run
from palm.mixing import Mixing
from palm.mixing.balance import Balance
from palm.optimizer import Optimizer, ParameterGroups
from palm.paradigm import Head
from palm.pretrained import pretrained_directory
from palm.pretrained.directory import directory_pooling
from palm.reader.cache import DataCache
from palm.reader.text.labels import Labels, moved_labels
from palm.train.build import build_optimizer
from palm.train.model import MultiTaskModel
from palm.train.planning import StepPlan, expect, step_problems
from palm.train.shared_rows import share_rows, sharing_problems
from palm.train.task import Task, wiring_problems

T = TypeVar("T")

PlaceOf = Callable[[str, str | None], str | None]
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


def build(plan: Plan, place: PlaceOf) -> Parts:
    """Construct and wire all components of a training run.

    Args:
        plan: the content of the configuration.
        place: returns the place of a setting in the configuration, given its name and scope.

    Raises:
        ConfigError: all problems found by the components and the wiring, in one report.
    """
    settings = RunSettings(**plan.settings)
    # Process-wide, because weights are initialized with torch's global generator.
    torch.manual_seed(settings.random_seed)
    if plan.backbone[1].get("pooling") == "model" and settings.pretrain_path is not None:
        # Only a run that starts from the directory reads this: saved models contain their pooling.
        folder = pretrained_directory(settings.pretrain_path)
        plan.backbone[1]["pooling"] = directory_pooling(folder)
    builder = _Builder(place)
    backbone = builder.built(plan.backbone, "backbone")
    optimizer = builder.built(plan.optimizer)
    groups = builder.built((ParameterGroups, plan.groups))
    mixing = builder.built(plan.mixing)
    balance = None if plan.balance is None else builder.built(plan.balance)
    with builder.reporting(None):  # checks the settings of the schedule on a long run
        schedule_of_run(settings.lr_scheduler, 10**6, settings.warmup_proportion, plan.schedule)
    tasks = builder.tasks(plan, settings, backbone)
    if len(tasks) == len(plan.tasks) + len(plan.given):  # otherwise the missing ones are reported already
        weighing = None if plan.balance is None else plan.balance[0].__name__
        # Not through `add`, which would drop this if the balance's package is missing as well.
        wrong = step_problems(settings.tasks_per_step, weighing, tasks)
        builder.problems += [_placed(place, None, line) for line in wrong]
        if settings.parallel == "fsdp" and (own := [task.name for task in tasks if task.lora is not None]):
            builder.add(
                [f"parallel: fsdp does not support lora, which {', '.join(own)} uses; set parallel: ddp"]
            )
    raise_any(builder.problems)
    with builder.reporting(None):  # reports layers and patterns that do not exist before data is read
        tops = [task.top for task in tasks]
        build_optimizer(optimizer, groups, MultiTaskModel(backbone, tasks), tasks)
        for task, top in zip(tasks, tops, strict=True):
            task.top = top  # private layers are copied again once the initial weights are loaded
    raise_any(builder.problems)
    return Parts(settings, backbone, optimizer, groups, plan.schedule, mixing, balance, tasks)


class _Builder:
    """Constructs components and collects their problems.

    Args:
        place: as in `build`.
    """

    def __init__(self, place: PlaceOf) -> None:
        self.place = place
        self.problems: list[str] = []

    def add(self, lines: Iterable[str], scope: str | None = None) -> None:
        """Add problems, each with its place."""
        # Head and encoder may refuse the same setting, which is reported once.
        known = {_subject(line) for line in self.problems} - {None}
        placed = [_placed(self.place, scope, line) for line in lines]
        self.problems += [line for line in placed if _subject(line) not in known]

    @contextmanager
    def reporting(self, scope: str | None, title: str = "the run") -> Iterator[None]:
        """Collect the errors raised in this block."""
        try:
            yield
        except ConfigError as error:
            self.add(error.problems, scope)
        except PalmError as error:
            self.add(str(error).splitlines(), scope)
        except (RuntimeError, MemoryError, OverflowError) as error:  # from torch, for impossible sizes
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            self.add([f"{title} cannot be built with these sizes: {reason}"], scope)

    def built(self, part: tuple[type[T], dict[str, Any]], scope: str | None = None) -> Any:
        """Return the component, or None if it has problems, which are collected."""
        cls, arguments = part
        with self.reporting(scope, cls.__name__):
            return cls(**arguments)
        return None

    def tasks(self, plan: Plan, settings: RunSettings, backbone: Backbone | None) -> list[Task]:
        """Return the tasks without problems, those of the configuration first."""
        ratios = settings.mix_ratio or [1.0] * len(plan.tasks)
        tags = settings.target_tag or [1] * len(plan.tasks)
        heads = self._shared_heads(plan, settings)
        made = []
        for task, head, ratio, tag in zip(plan.tasks, heads, ratios, tags, strict=True):
            reader = self.built(task.reader, task.name)
            if reader is not None and head is not None:
                parts = {"name": task.name, "reader": reader, "head": head, "mix_ratio": ratio}
                made.append(self.built((Task, {**parts, "is_target": tag == 1, **task.task}), task.name))
        configured = [task for task in made if task is not None]
        tasks = [*configured, *plan.given]
        if backbone is not None:
            for task in tasks:
                self.add(wiring_problems(task, backbone), task.name if task in configured else None)
            self.add(sharing_problems(tasks))
        return tasks

    def _shared_heads(self, plan: Plan, settings: RunSettings) -> list[Head | None]:
        """Return one head per task; tasks with the same `task_reuse_tag` share one object."""
        tags = settings.task_reuse_tag or [str(k) for k in range(len(plan.tasks))]
        first: dict[str, TaskPlan] = {}
        heads: dict[str, Head | None] = {}
        for tag, task in zip(tags, plan.tasks, strict=True):
            if tag not in first:
                first[tag] = task
                heads[tag] = self.built(task.head, task.name)
            elif first[tag].head != task.head:
                self.problems.append(
                    f"tasks {first[tag].name!r} and {task.name!r} share task_reuse_tag {tag!r}, but their "
                    f"heads differ: {_described(first[tag])} and {_described(task)}; give them different "
                    "tags or the same settings"
                )
            else:
                self._check_shared_labels(first[tag], task, tag)
        return [heads[tag] for tag in tags]

    def _check_shared_labels(self, one: TaskPlan, other: TaskPlan, tag: str) -> None:
        """Report labels with different ids in two tasks that share a head."""
        maps = [task.reader[1].get("label_map") for task in (one, other)]
        if None in maps:
            return
        with suppress(PalmError):  # a faulty mapping, which the reader reports
            if moved := moved_labels(*(Labels(None, each).names for each in maps)):
                self.problems.append(
                    f"tasks {one.name!r} and {other.name!r} share task_reuse_tag {tag!r}, but their label "
                    f"ids differ: {moved}; give them the same label_map, or different tags"
                )


def open_data(parts: Parts, devices: int | None = None) -> StepPlan:
    """Read the training data of all tasks, and plan their steps for `devices`, by default all processes."""
    settings = parts.settings
    main = next(task for task in parts.tasks if task.is_target)
    logger.info("%s: set as main task", main.name)
    cache = _cache_of(settings)
    for task in parts.tasks:
        task.open_stream(settings.random_seed, cache=cache, devices=devices)
        logger.info("%s: %d rows of training data", task.name, len(task.loaded_stream.rows))
    # Once all streams are open, a task with shared rows can use the batches of the other one.
    share_rows(parts.tasks)
    plan = StepPlan(
        tasks=[task.progress() for task in parts.tasks],
        mixing=parts.mixing,
        tasks_per_step=settings.tasks_per_step,
        max_steps=settings.max_steps,
    ).over_epochs(settings.num_epochs)
    expect(parts.tasks, plan)
    return plan


def _cache_of(settings: RunSettings) -> DataCache | None:
    if not settings.use_data_cache:
        return None
    return DataCache(settings.data_cache) if settings.data_cache else DataCache.of_user()


def _subject(line: str) -> str | None:
    """Return the place and name of the setting that a problem is about; None if it has no place."""
    found = re.match(r"(\S+:\d+|--\w+): \w+", line)
    return None if found is None else found[0]


def _placed(place: PlaceOf, scope: str | None, line: str) -> str:
    """Prefix a component's problem with the place of the setting that it begins with, or with its task."""
    if titled := re.match(r"task '([^']+)': (.*)", line, re.DOTALL):
        scope = titled[1]
    title = f"task {scope!r}: " if scope not in (None, "backbone") else ""
    text = line.removeprefix(title)
    name = re.match(r"\w*", text)
    origin = place(name.group(), scope) if name and name.group() else None
    is_exact = origin is not None and (":" in origin or origin.startswith("--"))  # a dict has no line numbers
    return f"{origin}: {text}" if is_exact else f"{title}{text}"


def _described(task: TaskPlan) -> str:
    cls, arguments = task.head
    return f"{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
