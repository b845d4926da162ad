"""Assembly of a run from the calls of PaddlePALM 2.x, when it is first needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from torch import nn

from palm.backbone import BACKBONES, Backbone
from palm.compat.optimizer import base_optimizer
from palm.compat.reader.loading import loading
from palm.config.run import ComponentConfig, RunConfig, TaskConfig, config_of
from palm.config.settings import RunSettings
from palm.core.component import count_problems, described_class, raise_any, type_problems
from palm.core.device import checked, device_of
from palm.core.errors import ConfigError, PalmError
from palm.core.logging import show_on_console
from palm.core.tensor_specs import Tensors
from palm.lr_sched import Schedule, WarmupScheduler
from palm.mixing import MIXINGS, Mixing, MixRatio
from palm.mixing.balance import BALANCES, Balance
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.paradigm import HEADS, Head
from palm.parallel.group import join
from palm.reader import READERS, Reader
from palm.train.build import start
from palm.train.checkpoint import described_schedule, load_checkpoint
from palm.train.loop import Components, Training
from palm.train.planning import StepPlan
from palm.train.task import TaskState

T = TypeVar("T")


@dataclass(frozen=True)
class Forward:
    """An encoder with one head."""

    backbone: Backbone
    head: Head

    def __post_init__(self) -> None:
        problems = type_problems(Backbone, "an encoder of palm.backbone", backbone=self.backbone)
        raise_any([*problems, *type_problems(Head, "a head of palm.head", task_head=self.head)])
        self.head.adapt(self.backbone.head_layers)


class Member(Protocol):
    """One task of a run: a `Trainer`."""

    @property
    def name(self) -> str: ...

    forward: Forward | None
    predict_forward: Forward | None
    task: TaskState | None
    own_layers: nn.Module | None


def require(value: T | None, name: str, call: str, caller: str) -> T:
    """Return `value`, which an earlier call should have set.

    Raises:
        PalmError: the value is None; with the missing call.
    """
    if value is None:
        raise PalmError(f"trainer {name!r}: {caller} was called too early; call {call} first")
    return value


def seed_of(readers: Iterable[Reader]) -> int:
    """Return the first seed that is set on a reader; 1 if there is none."""
    seeds = (loading(reader).seed for reader in readers)
    return next((seed for seed in seeds if seed is not None), 1)


class Assembly(ABC):
    """The parts of a run as they are chosen, and the run once it is assembled.

    Args:
        name: for messages.
        precision: compute in 'fp32' or 'bf16'; 'auto' is bf16 on devices with fast bfloat16.

    Attributes:
        fitting_call: the call that sets the training data, for messages.
        _mixing, _balance, _groups, _schedule: components of the run, as for `Components` and `start`.
        _settings: further settings of the run, as for `RunSettings`.

    Raises:
        ConfigError: `precision` is unknown.
    """

    fitting_call: ClassVar[str]

    def __init__(self, name: str, precision: str) -> None:
        show_on_console()
        # Before anything is built, because every process needs its own GPU.
        join(device_of(use_gpu=True))
        self._name = name
        self._precision = checked(precision)
        self._optimizer: Optimizer | None = None
        self._given_optimizer: Optimizer | None = None
        self._mixing: Mixing = MixRatio()
        self._balance: Balance | None = None
        self._groups = ParameterGroups()
        self._schedule: Callable[[int], float] = WarmupScheduler(0)
        self._settings: dict[str, Any] = {"precision": self._precision}
        self._run: Training | None = None
        self._checkpoint: Path | None = None
        self._draws: Iterator[tuple[int, Tensors]] | None = None

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @abstractmethod
    def _members(self) -> Sequence[Member]:
        """Return the trainers of its tasks, in order."""

    def _forwards(self, caller: str) -> dict[str, Forward]:
        """Return task -> encoder and head to train, set by every trainer's `build_forward`."""
        call = "build_forward(backbone, head)"
        return {each.name: require(each.forward, each.name, call, caller) for each in self._members()}

    def _predict_forwards(self, caller: str) -> dict[str, Forward]:
        """Return task -> encoder and head to predict with, set by every trainer's `build_predict_forward`."""
        call = "build_predict_forward(backbone, head)"
        return {each.name: require(each.predict_forward, each.name, call, caller) for each in self._members()}

    def _loadable(self, caller: str) -> dict[str, Forward]:
        """Return task -> encoder and head to train, or those to predict with if none is to be trained."""
        trains = any(each.forward for each in self._members())
        predicts = any(each.predict_forward for each in self._members())
        return self._predict_forwards(caller) if predicts and not trains else self._forwards(caller)

    def _tasks(self, caller: str) -> list[TaskState]:
        """Return the tasks with their training data."""
        return [require(each.task, self.name, self.fitting_call, caller) for each in self._members()]

    def _is_fitted(self) -> bool:
        """Check whether all tasks have training data."""
        return all(each.task is not None for each in self._members())

    def build_backward(
        self,
        optimizer: Optimizer,
        weight_decay: float | None = None,
        use_ema: bool = False,
        ema_decay: float | None = None,
        groups: ParameterGroups | None = None,
    ) -> None:
        """Choose how parameters are updated.

        Args:
            optimizer: of `palm.optimizer`.
            weight_decay: decoupled weight decay; None for the optimizer's own.
            use_ema: use moving averages of the weights to predict, and in models saved for prediction.
            ema_decay: decay of these averages, below 1.
            groups: learning rates of parts of the model, and frozen parts; None for one rate and no frozen
                parts.

        Raises:
            PalmError: `build_forward` was not called.
            ConfigError: a setting is out of range.
        """
        self._forwards("build_backward")
        if use_ema and not (ema_decay is not None and 0 <= ema_decay < 1):
            raise ConfigError(f"use_ema needs an ema_decay from 0 to below 1, not {ema_decay!r}")
        # Optimizers of 2.x get the schedule in their constructor, but only the run can follow it.
        self._settings |= {"use_ema": use_ema, "ema_decay": (ema_decay or 0.0) if use_ema else 0.0}
        self._schedule = getattr(optimizer, "lr_scheduler", None) or WarmupScheduler(0)
        self._groups = ParameterGroups() if groups is None else groups
        self._given_optimizer = optimizer
        settings = dict(optimizer.settings)
        if isinstance(optimizer, base_optimizer.Optimizer):  # has no weight decay of its own
            optimizer.weight_decay = weight_decay or 0.0
            weight_decay = None
        if weight_decay is not None:
            if "weight_decay" not in settings:
                raise ConfigError(f"{type(optimizer).__name__} has no weight_decay; remove it")
            # Rebuilt, because an optimizer checks and records its settings in its constructor.
            settings["weight_decay"] = weight_decay
            optimizer = described_class(type(optimizer))(**settings)  # type: ignore[assignment]
        self._optimizer = optimizer
        self._reset_run()

    @property
    def cur_train_step(self) -> int:
        """Number of steps so far."""
        return 0 if self._run is None else self._run.step

    def averaged(self) -> AbstractContextManager[Any]:
        """Return a context manager that uses the averaged weights, if the run keeps averages."""
        return nullcontext() if self._run is None else self._run.averaged()

    def _plan(self, caller: str) -> StepPlan:
        """Return the plan of the run's steps."""
        return StepPlan(
            tasks=[task.progress(0) for task in self._tasks(caller)],
            mixing=self._mixing,
            tasks_per_step=self._settings.get("tasks_per_step", 1),
            max_steps=self._settings.get("max_steps"),
        )

    def _limit_steps(self, max_steps: int | None) -> None:
        """Set the maximum number of steps; None for no limit.

        Raises:
            ConfigError: it is below 1.
        """
        raise_any([] if max_steps is None else count_problems(max_steps=max_steps))
        self._settings["max_steps"] = max_steps

    def _reset_run(self) -> None:
        """Forget the run; the next use assembles a new one."""
        self._run = None
        self._draws = None

    def _training(self, caller: str) -> Training:
        """Return the run, which is assembled on first use."""
        if self._run is not None:
            return self._run
        forwards = self._forwards(caller)
        optimizer = require(self._optimizer, self.name, "build_backward(optimizer)", caller)
        tasks = self._tasks(caller)
        parts = Components(
            backbone=next(iter(forwards.values())).backbone,
            optimizer=optimizer,
            tasks=[task.task for task in tasks],
            groups=self._groups,
            mixing=self._mixing,
            balance=self._balance,
            own_layers={m.name: m.own_layers for m in self._members() if m.own_layers is not None},
        )
        settings = RunSettings(
            task_instance=[task.name for task in tasks],
            random_seed=seed_of(task.reader for task in tasks),
            **self._settings,
        )
        rule = self._schedule
        schedule = ComponentConfig(
            **described_schedule(rule) if isinstance(rule, Schedule) else {"name": described_schedule(rule)}
        )
        config = described(settings, parts, schedule)
        run = start(config, parts, tasks, self._schedule, device_of(use_gpu=True))
        if self._checkpoint is not None:
            load_checkpoint(run, self._checkpoint)
            self._checkpoint = None
        # Set last, so that after an error the next call assembles it again.
        self._run = run
        if self._given_optimizer is not None:
            self._given_optimizer.running = run.optimizer
        return run


def described(settings: RunSettings, parts: Components, schedule: ComponentConfig) -> RunConfig:
    """Return the configuration of a run from its components."""
    backbone = config_of(BACKBONES, parts.backbone)
    optimizer = config_of(OPTIMIZERS, parts.optimizer)
    names: dict[str, Any] = {
        "backbone": backbone.name,
        "optimizer": optimizer.name,
        "lr_scheduler": schedule.name,
    }
    run = RunConfig(
        settings=replace(settings, **names),
        backbone=backbone,
        optimizer=optimizer,
        groups=ComponentConfig("groups", parts.groups.settings),
        schedule=schedule,
        mixing=config_of(MIXINGS, parts.mixing),
        balance=None if parts.balance is None else config_of(BALANCES, parts.balance),
        tasks=tuple(
            TaskConfig(task.name, config_of(READERS, task.reader), config_of(HEADS, task.head), task.settings)
            for task in parts.tasks
        ),
    )
    # So that `to_dict` has all of them.
    return replace(run, origins=dict.fromkeys(run.keys(), "Python"))
