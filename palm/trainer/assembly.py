"""Assembly of a run from the calls of PaddlePALM 2.x, on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from palm.backbone import Backbone
from palm.core.checks import count_problems, raise_any, type_problems
from palm.core.errors import ConfigError, PalmError
from palm.core.logging import show_on_console
from palm.core.numerics.device import device_of
from palm.core.numerics.precision import checked
from palm.core.tensor_specs import Tensors
from palm.distributed.group import join
from palm.engine.run.checkpoint import load_checkpoint
from palm.engine.training.build import start
from palm.engine.training.loop import Training
from palm.engine.training.planning import StepPlan
from palm.engine.training.recipe import Recipe
from palm.engine.training.task import Task
from palm.lr_sched import WarmupScheduler
from palm.mixing import MixRatio
from palm.optimizer import Optimizer, ParameterGroups, base_optimizer
from palm.paradigm import Head
from palm.reader import Reader

T = TypeVar("T")


@dataclass(frozen=True)
class LossVariable:
    """The result of `build_forward`, which an optimizer's constructor takes.

    Args:
        name: `<trainer>.loss`.
    """

    name: str


@dataclass(frozen=True)
class Forward:
    """An encoder with one head on it."""

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
    task: Task | None


def needed(value: T | None, name: str, call: str, caller: str) -> T:
    """Return `value`, which an earlier call should have set.

    Raises:
        PalmError: it did not happen; names the call.
    """
    if value is None:
        raise PalmError(f"trainer {name!r}: {caller} comes too early; call {call} first")
    return value


def seed_of(readers: Iterable[Reader]) -> int:
    """The first seed that a reader was given; 1 if none was."""
    return next((reader.seed for reader in readers if reader.seed is not None), 1)


class Assembly(ABC):
    """The parts of a run as they are chosen, and the run, once they are put together.

    Args:
        name: for messages.
        precision: compute in 'fp32' or 'bf16', or in what is fast on the device ('auto').

    Attributes:
        fitting_call: the call that gives it training data, for messages.
        _planned: arguments of `Recipe` that the plan of its steps takes, too.
        _chosen: further arguments of `Recipe`.

    Raises:
        ConfigError: another `precision`.
    """

    fitting_call: ClassVar[str]

    def __init__(self, name: str, precision: str) -> None:
        show_on_console()
        # Before anything is built, because a process of several must take its own GPU.
        join(device_of(use_gpu=True))
        self._name = name
        self._precision = checked(precision)
        self._optimizer: Optimizer | None = None
        self._given_optimizer: Optimizer | None = None
        self._planned: dict[str, Any] = {"mixing": MixRatio(), "tasks_per_step": 1, "max_steps": None}
        self._chosen: dict[str, Any] = {"precision": self._precision, "schedule": WarmupScheduler(0)}
        self._run: Training | None = None
        self._checkpoint: Path | None = None
        self._draws: Iterator[tuple[int, Tensors]] | None = None

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @abstractmethod
    def _members(self) -> Sequence[Member]:
        """The trainers of its tasks, in order."""

    def _forwards(self, caller: str) -> dict[str, Forward]:
        """Task -> what is trained, after every trainer's `build_forward`."""
        call = "build_forward(backbone, head)"
        return {each.name: needed(each.forward, each.name, call, caller) for each in self._members()}

    def _predict_forwards(self, caller: str) -> dict[str, Forward]:
        """Task -> what predicts, after every trainer's `build_predict_forward`."""
        call = "build_predict_forward(backbone, head)"
        return {each.name: needed(each.predict_forward, each.name, call, caller) for each in self._members()}

    def _loadable(self, caller: str) -> dict[str, Forward]:
        """Task -> what is trained, or, where nothing is, what predicts."""
        trains = any(each.forward for each in self._members())
        predicts = any(each.predict_forward for each in self._members())
        return self._predict_forwards(caller) if predicts and not trains else self._forwards(caller)

    def _tasks(self, caller: str) -> list[Task]:
        """The tasks with their training data."""
        return [needed(each.task, self.name, self.fitting_call, caller) for each in self._members()]

    def _is_fitted(self) -> bool:
        """Return True if all tasks have training data."""
        return all(each.task is not None for each in self._members())

    def build_backward(
        self,
        optimizer: Optimizer,
        weight_decay: float | None = None,
        use_ema: bool = False,
        ema_decay: float | None = None,
        groups: ParameterGroups | None = None,
    ) -> None:
        """Choose how parameters move.

        Args:
            optimizer: of `palm.optimizer`.
            weight_decay: decoupled decay; the optimizer's own where None.
            use_ema: predict, and save for prediction, with moving averages of the weights.
            ema_decay: decay of these averages, below 1.
            groups: rates of parts of the model, and what is frozen; one rate, and nothing, where None.

        Raises:
            PalmError: `build_forward` was not called.
            ConfigError: a setting out of its range.
        """
        self._forwards("build_backward")
        if use_ema and not (ema_decay is not None and 0 <= ema_decay < 1):
            raise ConfigError(f"use_ema needs an ema_decay from 0 to below 1, not {ema_decay!r}")
        # Optimizers of 2.x take the schedule in their constructor; only the run can follow it.
        own_schedule = getattr(optimizer, "lr_scheduler", None)
        self._chosen |= {
            "ema_decay": ema_decay if use_ema else None,
            "schedule": optimizer.given_2x.get("lr_scheduler", own_schedule) or WarmupScheduler(0),
            "groups": ParameterGroups() if groups is None else groups,
        }
        self._given_optimizer = optimizer
        settings = {**optimizer.settings, **optimizer.given_2x}
        if isinstance(optimizer, base_optimizer.Optimizer):  # it has no decay of its own
            optimizer.weight_decay = weight_decay or 0.0
            weight_decay = None
        if weight_decay is not None:
            if "weight_decay" not in settings:
                raise ConfigError(f"weight_decay: {type(optimizer).__name__} has none; leave it out")
            # Built anew, because an optimizer checks its settings, and describes them to checkpoints, when it
            # is made.
            settings["weight_decay"] = weight_decay
            optimizer = type(optimizer)(**settings)
        self._optimizer = optimizer
        self._begin_anew()

    @property
    def cur_train_step(self) -> int:
        """Steps so far."""
        return 0 if self._run is None else self._run.step

    def averaged(self) -> AbstractContextManager[Any]:
        """Within this context there are averaged weights, where the run keeps averages."""
        return nullcontext() if self._run is None else self._run.averaged()

    def _plan(self, caller: str) -> StepPlan:
        """The plan of the run's steps."""
        return StepPlan(tasks=[task.progress(0) for task in self._tasks(caller)], **self._planned)

    def _limit_steps(self, max_steps: int | None) -> None:
        """Take the most steps that the run may have; None for no limit.

        Raises:
            ConfigError: it is not 1 or more.
        """
        raise_any([] if max_steps is None else count_problems(max_steps=max_steps))
        self._planned["max_steps"] = max_steps

    def _begin_anew(self) -> None:
        """Forget the run: what is changed now concerns the next one."""
        self._run = None
        self._draws = None

    def _training(self, caller: str) -> Training:
        """The run, assembled on first use."""
        if self._run is not None:
            return self._run
        forwards = self._forwards(caller)
        optimizer = needed(self._optimizer, self.name, "build_backward(optimizer)", caller)
        tasks = self._tasks(caller)
        recipe = Recipe(
            backbone=next(iter(forwards.values())).backbone,
            tasks=tasks,
            optimizer=optimizer,
            seed=seed_of(task.reader for task in tasks),
            device=device_of(use_gpu=True),
            **self._planned,
            **self._chosen,
        )
        run = start(recipe)
        if self._checkpoint is not None:
            load_checkpoint(run, self._checkpoint)
            self._checkpoint = None
        # Kept only now: after an error the next call assembles it again.
        self._run = run
        if self._given_optimizer is not None:
            self._given_optimizer.running = run.optimizer
        return run
