"""From a run's configuration to its components, and from these to a run before its first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from palm.backbone import BACKBONES
from palm.config.config import located
from palm.config.run import ComponentConfig, RunConfig, TaskConfig
from palm.config.settings import RunSettings
from palm.core.cache import Cache
from palm.core.component import Registry, raise_any
from palm.core.device import choice, keep_freed_memory
from palm.core.errors import ConfigError, PalmError, Problem
from palm.core.logging import logger
from palm.core.process import waiting
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.optimizer.lr_sched import schedule_of_run
from palm.paradigm import HEADS, Head
from palm.reader import READERS
from palm.reader.labels import Labels, moved_labels
from palm.train.loop import Components, Training
from palm.train.model import MultiTaskModel
from palm.train.task import (
    StepPlan,
    Task,
    TaskState,
    expect,
    opened,
    share_rows,
    sharing_problems,
    step_problems,
    wiring_problems,
)
from palm.train.train_step import ExponentialMovingAverage


def build(run: RunConfig, given: Mapping[str, Task] = MappingProxyType({})) -> Components:
    """Construct and wire all components of a run.

    Args:
        run: the run.
        given: tasks that were built in Python, by name.

    Raises:
        ConfigError: all problems found by the components and the wiring, in one report.
    """
    # Process-wide, because weights are initialized with torch's global generator.
    torch.manual_seed(run.settings.random_seed)
    builder = _Builder(run)
    backbone = builder.built(BACKBONES, run.backbone, "backbone")
    optimizer = builder.built(OPTIMIZERS, run.optimizer)
    with builder.reporting(None):
        groups = ParameterGroups(**run.groups.settings)
    mixing = builder.built(MIXINGS, run.mixing)
    balance = None if run.balance is None else builder.built(BALANCES, run.balance)
    with builder.reporting(None):  # checks the settings of the schedule on a long run
        schedule_for(run, 10**6)
    tasks = builder.tasks(given)
    if backbone is not None:
        for task in tasks:
            builder.add(wiring_problems(task, backbone), None if task.name in given else task.name)
        builder.add(sharing_problems(tasks))
    if len(tasks) == len(run.tasks):  # otherwise the missing ones are reported already
        weighing = None if run.balance is None else run.balance.name
        # Not only if nothing else is wrong, since the package of the balance may be missing as well.
        builder.add(step_problems(run.settings.tasks_per_step, weighing, tasks), once=False)
    raise_any(builder.problems)
    with builder.reporting(None):  # reports layers and patterns that do not exist before data is read
        build_optimizer(optimizer, groups, MultiTaskModel(backbone, tasks), tasks)
    raise_any(builder.problems)
    return Components(backbone, optimizer, tasks, groups, mixing, balance)


class _Builder:
    """Constructs components and collects their problems, each with the place of its setting."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.problems: list[str] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, lines: Iterable[str], scope: str | None = None, once: bool = True) -> None:
        """Add problems of the components of a scope."""
        for line in lines:
            setting, task = (line.setting, line.task or scope) if isinstance(line, Problem) else ("", scope)
            place = self.run.place(setting, task) if setting else None
            title = f"task {task!r}: " if task not in (None, "backbone") else ""
            text = line.removeprefix(title)
            found = located(place, Problem(text, setting), title)
            # Head and encoder may refuse the same setting, which is reported once.
            if place is None or (place, setting) not in self._known or not once:
                self.problems.append(found)
            self._known.add((place or "", setting))

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

    def built(self, registry: Registry[Any], part: ComponentConfig, scope: str | None = None) -> Any:
        """Return the component, or None if it has problems, which are collected."""
        cls = registry[part.name]
        with self.reporting(scope, cls.__name__):
            return cls(**part.settings)
        return None

    def tasks(self, given: Mapping[str, Task]) -> list[Task]:
        """Return the tasks without problems, in order."""
        configured = [task for task in self.run.tasks if task.name not in given]
        heads = self._heads(configured)
        made: list[Task] = []
        for task in self.run.tasks:
            if task.name in given:
                made.append(given[task.name])
                continue
            reader = self.built(READERS, task.reader, task.name)
            if reader is not None and (head := heads[task.name]) is not None:
                with self.reporting(task.name):
                    made.append(Task(task.name, reader, head, **vars(task.settings)))
        return made

    def _heads(self, tasks: Sequence[TaskConfig]) -> dict[str, Head | None]:
        """Return task -> its head; tasks with the same `task_reuse_tag` share one object."""
        tags = self.run.settings.task_reuse_tag or [str(number) for number in range(len(tasks))]
        first: dict[str, TaskConfig] = {}
        heads: dict[str, Head | None] = {}
        for tag, task in zip(tags, tasks, strict=True):
            owner = first.setdefault(tag, task)
            if owner is task:
                heads[task.name] = self.built(HEADS, task.head, task.name)
                continue
            heads[task.name] = heads[owner.name]
            if owner.head != task.head:
                self.problems.append(
                    f"tasks {owner.name!r} and {task.name!r} share task_reuse_tag {tag!r}, but their "
                    f"heads differ: {_described(owner)} and {_described(task)}; give them different "
                    "tags or the same settings"
                )
            else:
                self._check_shared_labels(owner, task, tag)
        return heads

    def _check_shared_labels(self, one: TaskConfig, other: TaskConfig, tag: str) -> None:
        """Report labels with different ids in two tasks that share a head."""
        maps = [task.reader.settings.get("label_map") for task in (one, other)]
        if None in maps:
            return
        with suppress(PalmError):  # a faulty mapping, which the reader reports
            if moved := moved_labels(*(Labels(None, each).names for each in maps)):
                self.problems.append(
                    f"tasks {one.name!r} and {other.name!r} share task_reuse_tag {tag!r}, but their label "
                    f"ids differ: {moved}; give them the same label_map, or different tags"
                )


def _described(task: TaskConfig) -> str:
    settings = ", ".join(f"{name}={value!r}" for name, value in task.head.settings.items())
    return f"{HEADS[task.head.name].__name__}({settings})"


def schedule_for(run: RunConfig, steps: int) -> Callable[[int], float]:
    """Return the schedule of a run of so many steps: global step, from 0 -> factor of the learning rate."""
    return schedule_of_run(run.schedule.name, steps, run.settings.warmup_proportion, run.schedule.settings)


def open_data(
    run: RunConfig, parts: Components, devices: int | None = None
) -> tuple[list[TaskState], StepPlan]:
    """Read the training data of all tasks, and plan their steps.

    Args:
        run: the run.
        parts: its components.
        devices: number of devices that train; the number of processes by default.
    """
    settings = run.settings
    logger.info("%s: set as main task", next(task.name for task in parts.tasks if task.is_target))
    cache = Cache(settings.data_cache) if settings.data_cache else Cache.of_user()
    cache = cache if settings.use_data_cache else None
    tasks = [opened(task, settings.random_seed, cache, devices) for task in parts.tasks]
    for task in tasks:
        logger.info("%s: %d rows of training data", task.name, len(task.stream.rows))
    # Once all streams are open, a task with shared rows can use the batches of the other one.
    share_rows(tasks)
    plan = StepPlan.of(tasks, parts.mixing, settings).over_epochs(settings.num_epochs)
    expect(tasks, plan)
    return tasks, plan


def start(
    run: RunConfig,
    parts: Components,
    tasks: Sequence[TaskState],
    schedule: Callable[[int], float],
    device: torch.device,
) -> Training:
    """Build the model, its replica, optimizer and averages: a run before its first step.

    Args:
        run: the run.
        parts: its components.
        tasks: its tasks, with planned steps.
        schedule: global step, from 0 -> factor of the learning rate.
        device: the device that computes.

    Raises:
        ConfigError: this model or device does not support a setting.
    """
    settings = run.settings
    if parts.balance is not None:
        parts.balance.reset()
    # Encoders that compute padding compute less of it if the rows of a batch have similar lengths.
    if parts.backbone.wants_even_lengths:
        for task in tasks:
            task.stream.group_by_length()
    model = MultiTaskModel(parts.backbone, parts.tasks)
    model.to(device)
    _prepare(model, settings, device)
    optimizer = build_optimizer(parts.optimizer, parts.groups, model, parts.tasks)
    ema = None
    if settings.use_ema:
        ema = ExponentialMovingAverage(moving_parameters(model), settings.ema_decay)
    return Training(
        run,
        parts=parts,
        tasks=tasks,
        schedule=schedule,
        device=device,
        model=model,
        optimizer=optimizer,
        ema=ema,
    )


def _prepare(model: MultiTaskModel, settings: RunSettings, device: torch.device) -> None:
    """Set the precision of a model and the way in which it uses memory."""
    if device.type == "cpu":
        keep_freed_memory()
        logger.info("CPU threads: %d; while they wait: %s.", torch.get_num_threads(), waiting())
    model.precision, reason = choice(settings.precision, device)
    logger.info("Computing in %s on %s (%s).", model.precision, device.type, reason)
    if settings.activation_checkpointing:
        model.backbone.checkpoint_activations()


def build_optimizer(
    optimizer: Optimizer, groups: ParameterGroups, model: MultiTaskModel, tasks: Sequence[Task]
) -> torch.optim.Optimizer:
    """Freeze parameters, and build the torch optimizer of the others.

    Args:
        optimizer: its settings.
        groups: frozen parts and learning rates of parts of the model.
        model: the model, on its device.
        tasks: the tasks, which may have learning rates for their heads.

    Raises:
        ConfigError: a layer or parameter does not exist, or a head has two learning rates.
    """
    frozen = groups.frozen([name for name, _ in model.named_parameters()], model.parameter_layers)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    moving = moving_parameters(model)
    built = optimizer.build(moving)
    factors = optimizer.layer_factors(model.parameter_layers)
    decays: dict[str, float] = {}
    for task, place in model.head_places.items():
        head = model.head(task)
        factors |= {f"{place}.{name}": factor for name, factor in head.rate_factors.items()}
        decays |= {f"{place}.{name}": part for name, part in head.l2_decays.items()}
    rates = _head_rates(model, tasks)
    groups.apply(built, moving, optimizer.learning_rate, rates, factors)
    _decay(built, [(parameter, decays[name]) for name, parameter in moving if name in decays])
    return built


def _decay(optimizer: torch.optim.Optimizer, decaying: Sequence[tuple[nn.Parameter, float]]) -> None:
    """Add L2 decay to the gradients of some parameters, each with its own factor."""

    def add_decay(*_: Any) -> None:
        for parameter, part in decaying:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=part)

    if decaying:
        # A hook of the optimizer runs after clipping, as in PaddlePALM 2.x.
        optimizer.register_step_pre_hook(add_decay)


def moving_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are not frozen, with their names."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _head_rates(model: MultiTaskModel, tasks: Sequence[Task]) -> dict[str, float]:
    rates: dict[str, float] = {}
    owner: dict[str, Task] = {}
    for task in tasks:
        start = f"{model.head_places[task.name]}."
        other = owner.setdefault(start, task)
        if other.head_learning_rate != task.head_learning_rate:
            raise ConfigError(
                f"tasks {other.name!r} and {task.name!r} share a head; give them the same "
                f"head_learning_rate, not {other.head_learning_rate!r} and {task.head_learning_rate!r}"
            )
        if task.head_learning_rate is not None:
            rates[start] = task.head_learning_rate
    return rates
