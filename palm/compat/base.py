"""The common part of `Trainer` and `MultiHeadTrainer`: a run from the calls of PaddlePALM 2.x."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from palm.backbone import BACKBONES, Backbone
from palm.compat.reader.base_reader import loading
from palm.config import yaml_text
from palm.config.run import ComponentConfig, RunConfig, config_of
from palm.config.settings import RunSettings
from palm.core.component import (
    choice_problems,
    number_problems,
    path_problems,
    raise_any,
    type_problems,
)
from palm.core.device import checked, device_of
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.group import barrier, is_main_process, join
from palm.core.io import numbered, write_text
from palm.core.logging import collected_warnings, logger, show_on_console
from palm.core.process import StopRequest, is_notebook, stop_request
from palm.core.saved import Tensors, load_into
from palm.mixing import MIXINGS, MixRatio
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.optimizer.lr_sched import WarmupScheduler
from palm.paradigm import Head
from palm.pretrained.loading import load_pretrain, pretrained_directory
from palm.reader import Reader
from palm.train.build import start
from palm.train.callbacks import Callback, Event, Logged, Saved, callback_problems
from palm.train.checkpoint import described_schedule, load_checkpoint, save_checkpoint
from palm.train.display import progress_callbacks
from palm.train.folder import only_run_in
from palm.train.loop import Components, Training
from palm.train.model_paths import RECIPE
from palm.train.result import TrainingResult
from palm.train.run import run_training
from palm.train.saved_model import trained_weights
from palm.train.saving import PeriodicSaver, save_model
from palm.train.task import TaskState

if TYPE_CHECKING:
    from palm.compat.trainer import Trainer

T = TypeVar("T")

FOLDERS = {"ckpt": "ckpt", "predict": "pred"}
"""`save_type` -> prefix of the name of the saved directory."""


@dataclass(frozen=True)
class Forward:
    """An encoder with one head."""

    backbone: Backbone
    head: Head

    def __post_init__(self) -> None:
        problems = type_problems(Backbone, "an encoder of palm.backbone", backbone=self.backbone)
        raise_any([*problems, *type_problems(Head, "a head of palm.head", task_head=self.head)])
        self.head.adapt(self.backbone.head_layers)


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


def own_steps(task: TaskState) -> int:
    """Return the number of a task's steps in the `num_epochs` of its reader; in one if that is None."""
    return (loading(task.reader).num_epochs or 1) * task.steps_per_epoch


class TrainerBase(ABC):
    """Base class of trainers: their tasks, and the run once it is assembled.

    Args:
        name: for messages.
        precision: compute in 'fp32' or 'bf16'; 'auto' is bf16 on devices with fast bfloat16.

    Attributes:
        name: the name.
        fitting_call: the call that sets the training data, for messages.

    Raises:
        ConfigError: `precision` is unknown.
    """

    fitting_call: ClassVar[str]

    def __init__(self, name: str, precision: str) -> None:
        show_on_console()
        # Before anything is built, because every process needs its own GPU.
        join(device_of(use_gpu=True))
        self.name = name
        self._precision: Any = checked(precision)
        self._optimizer: Optimizer | None = None
        self._schedule: Callable[[int], float] = WarmupScheduler(0)
        self._averages: dict[str, Any] = {}
        self._run: Training | None = None
        self._checkpoint: Path | None = None
        self._draws: Iterator[tuple[int, Tensors]] | None = None
        self._saver: PeriodicSaver | None = None
        self._save_path: Path | None = None

    @abstractmethod
    def _members(self) -> Sequence[Trainer]:
        """Return the trainers of its tasks, in order."""

    def _heading(self, logged: Logged) -> str:  # noqa: ARG002
        """Return the beginning of a step's log line."""
        return ""

    def _log_finish(self, event: Event) -> None:  # noqa: ARG002
        """Log that a target has finished its steps, if several tasks are trained."""
        return

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

    def build_backward(
        self,
        optimizer: Optimizer,
        weight_decay: float | None = None,
        use_ema: bool = False,
        ema_decay: float | None = None,
    ) -> None:
        """Choose how parameters are updated.

        Args:
            optimizer: of `palm.optimizer`.
            weight_decay: decoupled weight decay; None for the optimizer's own.
            use_ema: use moving averages of the weights to predict, and in models saved for prediction.
            ema_decay: decay of these averages, below 1.

        Raises:
            PalmError: `build_forward` was not called.
            ConfigError: a setting is out of range.
        """
        self._forwards("build_backward")
        if use_ema and not (ema_decay is not None and 0 <= ema_decay < 1):
            raise ConfigError(f"use_ema needs an ema_decay from 0 to below 1, not {ema_decay!r}")
        if weight_decay is not None:
            if not hasattr(optimizer, "weight_decay"):
                raise ConfigError(f"{type(optimizer).__name__} has no weight_decay; remove it")
            raise_any(number_problems("0 or more", lambda decay: decay >= 0, weight_decay=weight_decay))
            optimizer.weight_decay = weight_decay
            if "weight_decay" in optimizer.settings:
                optimizer.settings["weight_decay"] = weight_decay
        self._averages = {"use_ema": use_ema, "ema_decay": (ema_decay or 0.0) if use_ema else 0.0}
        # Optimizers of 2.x get the schedule in their constructor, but only the run can follow it.
        self._schedule = getattr(optimizer, "lr_scheduler", None) or WarmupScheduler(0)
        self._optimizer = optimizer
        self._reset_run()

    @property
    def cur_train_step(self) -> int:
        """Number of steps so far."""
        return 0 if self._run is None else self._run.step

    def averaged(self) -> AbstractContextManager[Any]:
        """Return a context manager that uses the averaged weights, if the run keeps averages."""
        return nullcontext() if self._run is None else self._run.averaged()

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
            groups=ParameterGroups(),
            mixing=MixRatio(),
        )
        settings = RunSettings(
            task_instance=[task.name for task in tasks],
            random_seed=seed_of(task.reader for task in tasks),
            precision=self._precision,
            **self._averages,
        )
        config = run_config(settings, parts, self._schedule)
        run = start(config, parts, tasks, self._schedule, device_of(use_gpu=True))
        if self._checkpoint is not None:
            load_checkpoint(run, self._checkpoint)
            self._checkpoint = None
        # Set last, so that after an error the next call assembles it again.
        self._run = run
        optimizer.running = run.optimizer
        return run

    # Before training

    def load_pretrain(self, model_path: str | Path, convert: bool = False) -> None:  # noqa: ARG002
        """Start from pretrained weights instead of random ones.

        Args:
            model_path: a directory in any layout that `palm.load_backbone` reads, or the name of a model at
                Hugging Face, `owner/name`.
            convert: accepted but ignored; packed models are detected automatically.

        Raises:
            PalmError: neither `build_forward` nor `build_predict_forward` was called.
            StorageError: the directory has no weights, or weights of another shape.
        """
        forwards = self._loadable("load_pretrain")
        logger.info("Loading pretraining parameters from %s...", model_path)
        backbone = next(iter(forwards.values())).backbone
        heads = [(name, forward.head, ()) for name, forward in forwards.items()]
        load_pretrain(backbone, pretrained_directory(model_path), heads)

    def load_ckpt(self, model_path: str | Path) -> None:
        """Resume from a checkpoint (weights, optimizer, averages and position), or predict with its weights.

        Args:
            model_path: a checkpoint written by `set_saver`, `save` or a `Controller`.

        Raises:
            PalmError: neither `build_forward` nor `build_predict_forward` was called.
            StorageError: the checkpoint is missing, damaged, or of other tasks; with the differences.
        """
        raise_any(path_problems(model_path=model_path))
        path = Path(model_path)
        forwards = self._loadable("load_ckpt")
        logger.info("Load model from %s", path)
        self._reset_run()
        self._checkpoint = path
        # Without data and an optimizer there is no run to resume, so the weights are for prediction.
        if self._optimizer is not None and all(each.task is not None for each in self._members()):
            self._training("load_ckpt")
        else:
            self._load_trained(forwards, path)

    @staticmethod
    def _load_trained(forwards: Mapping[str, Forward], path: Path) -> None:
        """Load the weights of a checkpoint or a saved model into encoders and heads, for prediction."""
        weights = trained_weights(path)
        for name, forward in forwards.items():
            known = list(weights.heads)
            saved = name if len(known) > 1 else known[0]  # one task may have been trained under another name
            if saved not in known:
                names = ", ".join(known)
                raise StorageError(
                    f"{path} has no task {name!r}; it has {names}. Name the trainer as in training"
                )
            load_into(forward.backbone, weights.backbone, path)
            load_into(forward.head, weights.heads[saved], path)

    def set_saver(self, save_path: str | Path, save_steps: int, save_type: str = "ckpt") -> None:
        """Save every `save_steps` steps and at the end of training.

        Args:
            save_path: checkpoints are saved to `<save_path>/ckpt.step<N>`, models to
                `<save_path>/pred.step<N>`.
            save_steps: 0 or less to save only at the end.
            save_type: 'ckpt', 'predict' (a model for `palm.load_model`) or 'ckpt,predict'.

        Raises:
            ConfigError: `save_type` is unknown.
        """
        raise_any(path_problems(save_path=save_path))
        raise_any(type_problems(int, "a number of steps", save_steps=save_steps))
        folder = Path(save_path)
        kinds = [kind.strip() for kind in str(save_type).split(",")]
        if not set(kinds) <= FOLDERS.keys():
            raise ConfigError(f"save_type should be 'ckpt', 'predict' or 'ckpt,predict', not {save_type!r}")

        def write(step: int) -> list[Saved]:
            paths = {kind: folder / f"{FOLDERS[kind]}.step{step}" for kind in kinds}
            return [saved for kind, path in paths.items() for saved in self._save(path, kind)]

        self._save_path = folder
        self._saver = PeriodicSaver(write, save_steps, at_end=True)

    # Training

    def train(self, print_steps: int = 5, *, callbacks: Sequence[Callback] = ()) -> TrainingResult:
        """Train until every target has had its steps.

        With `set_saver`, the history is written to its `save_path`.

        Args:
            print_steps: number of steps between log lines.
            callbacks: called with every event of the run, see `palm.train.callbacks`.

        Raises:
            PalmError: a call is missing, or a loss cannot be used.
            Stopped: training was stopped by a signal and there is a saver; notebook cells return normally.
        """
        raise_any(
            [*type_problems(int, "a whole number", print_steps=print_steps), *callback_problems(callbacks)]
        )
        run = self._training("train")
        if run.step and run.is_over:
            logger.warning(
                "%s: training has finished; to train from scratch, call build_forward and fit_reader",
                self.name,
            )
        shown = progress_callbacks("auto", self._heading) if is_main_process() else []
        saving = [] if self._saver is None else [self._saver]
        folder = self._save_path if is_main_process() else None
        with nullcontext() if folder is None else only_run_in(folder), collected_warnings() as warned:
            if folder is not None:
                write_text(folder / RECIPE, yaml_text(run.config.to_dict()))
            # A script without a saver ends at once, because it saves nothing anyway.
            handled = stop_request() if is_notebook() or self._saver else nullcontext(StopRequest())
            with handled as run.stop_request:
                return run_training(
                    run,
                    self._save_path,
                    [*shown, *callbacks, self._log_finish, *saving],
                    every=print_steps,
                    warned=warned,
                    resume_advice=self._resume_advice,
                )

    def _resume_advice(self) -> str:
        saved = {} if self._save_path is None else numbered(self._save_path, f"{FOLDERS['ckpt']}.step")
        again = "to resume, call train() of this trainer again"
        return f"{again}, or load_ckpt({str(saved[max(saved)])!r}) and train() of another" if saved else again

    def save(self, save_path: str | Path, save_type: str = "ckpt") -> None:
        """Save the current state.

        Args:
            save_path: the directory to write; one that palm wrote is replaced atomically.
            save_type: 'ckpt' or 'predict'.

        Raises:
            ConfigError: `save_type` is unknown, or the directory is the working directory or above it.
            PalmError: an earlier call is missing; with the call.
        """
        here = Path.cwd()
        if Path(save_path).resolve() in (here, *here.parents):
            raise ConfigError(f"save_path should be a separate folder, not {str(save_path)!r}")
        raise_any(choice_problems(tuple(FOLDERS), save_type=save_type))
        self._save(Path(save_path), save_type)

    def _save(self, path: Path, kind: str) -> list[Saved]:
        run = self._training("save")
        if kind == "ckpt":
            save_checkpoint(run, path)
            logger.info("checkpoint has been saved at %s", path)
            saved = [Saved(run.step, "checkpoint", path)]
        else:
            saved = [
                save_model(
                    run,
                    [task],
                    path if len(run.tasks) == 1 else path / task.name,
                    "target" if task.done else "on_the_way",
                )
                for task in run.tasks
            ]
            logger.info("predict model has been saved at %s", path)
        barrier()  # afterwards, all ranks may read it
        return saved

    # Step by step

    def _train_on(self, task: TaskState, batch: Tensors) -> Tensors:
        step = self._training("train_one_step").step_on([(task, [batch])])
        self._log_finish(step)
        if self._saver is not None:
            self._saver(step)
        return {f"{task.name}.loss": step.loss.reshape(1).cpu()}

    def _batches(self, tasks: list[TaskState]) -> Iterator[tuple[int, Tensors]]:
        """Yield the number of the drawn task and its batch for every step, in the same order as `train`."""
        if self._checkpoint is not None:
            self._training("get_one_batch")  # restores the position of the checkpoint
        seed = seed_of(task.reader for task in tasks)
        # Counted separately from trained batches: a batch may be trained on much later, or never.
        yielded = [task.step for task in tasks]
        for position in count(self.cur_train_step):
            progress = [task.progress(step) for task, step in zip(tasks, yielded, strict=True)]
            number = MixRatio().draw(seed, position, progress)
            yield number, tasks[number].stream.batch(yielded[number])
            yielded[number] += 1

    def _next_draw(self) -> tuple[int, Tensors]:
        if self._draws is None:
            # Not before the first call, when the run's data and checkpoint are known.
            self._draws = self._batches(self._tasks("get_one_batch"))
        return next(self._draws)


def run_config(settings: RunSettings, parts: Components, schedule: Callable[[int], float]) -> RunConfig:
    """Return the configuration of a run from its components."""
    backbone = config_of(BACKBONES, parts.backbone)
    optimizer = config_of(OPTIMIZERS, parts.optimizer)
    rule = described_schedule(schedule)
    schedule_config = ComponentConfig(**rule) if isinstance(rule, dict) else ComponentConfig(rule)
    names: dict[str, Any] = {"backbone": backbone.name, "optimizer": optimizer.name}
    run = RunConfig(
        settings=replace(settings, **names, lr_scheduler=schedule_config.name),
        backbone=backbone,
        optimizer=optimizer,
        groups=ComponentConfig("groups", parts.groups.settings),
        schedule=schedule_config,
        mixing=config_of(MIXINGS, parts.mixing),
        balance=None,
        tasks=tuple(task.config for task in parts.tasks),
    )
    # So that `to_dict` has all of them.
    return replace(run, origins=dict.fromkeys(run.keys(), "Python"))
