"""What `Trainer` and `MultiHeadTrainer` have in common: an optimizer, a run, saving and loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from palm.backbone import Backbone
from palm.core.contract import Tensors
from palm.core.device import device_of
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.logging import logger, show_on_console
from palm.core.precision import checked, resolved
from palm.core.storage import load_into
from palm.distributed import barrier, join
from palm.downloader import pretrained_directory
from palm.engine.build import build_optimizer, moving_parameters
from palm.engine.checkpoint import load_checkpoint, save_checkpoint, trained_weights
from palm.engine.ema import ExponentialMovingAverage
from palm.engine.inference import InferenceModel
from palm.engine.logs import StepLog, log_counts
from palm.engine.loop import Step, Training
from palm.engine.model import MultiTaskModel
from palm.engine.task import Task
from palm.lr_sched import Schedule, WarmupScheduler
from palm.mixing import Mixing, MixRatio
from palm.optimizer import Optimizer, ParameterGroups
from palm.paradigm import Head
from palm.pretrained import load_pretrain
from palm.reader import Reader
from palm.trainer.saver import Saver, kinds_of

T = TypeVar("T")


@dataclass(frozen=True)
class LossVariable:
    """What `build_forward` gives for an optimizer's constructor to take.

    Args:
        name: `<trainer>.loss`.
    """

    name: str


@dataclass(frozen=True)
class Forward:
    """An encoder with one head on it."""

    backbone: Backbone
    head: Head


class TrainerBase(ABC):
    """A run under the names of PaddlePALM 2.x: it assembles tasks and hands them to the training loop.

    Args:
        name: for messages.
        precision: compute in 'fp32' or 'bf16', or in what is fast on the device ('auto').

    Raises:
        ConfigError: another `precision`.
    """

    def __init__(self, name: str, precision: str) -> None:
        show_on_console()
        join(device_of(use_gpu=True))
        self._name = name
        self._precision = checked(precision)
        self._optimizer: Optimizer | None = None
        self._groups = ParameterGroups()
        self._ema_decay: float | None = None
        self._run: Training | None = None
        self._saver: Saver | None = None
        self._checkpoint: Path | None = None
        self._draws: Iterator[tuple[int, Tensors]] | None = None
        self._mixing: Mixing = MixRatio()

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @abstractmethod
    def _forwards(self, caller: str) -> dict[str, Forward]:
        """Task -> what is trained, after every trainer's `build_forward`."""

    @abstractmethod
    def _loadable(self, caller: str) -> dict[str, Forward]:
        """Task -> what is trained, or, where nothing is, what predicts."""

    @abstractmethod
    def _tasks(self, caller: str) -> list[Task]:
        """The tasks with their training data."""

    @abstractmethod
    def _is_fitted(self) -> bool:
        """Whether there are tasks."""

    @abstractmethod
    def _heading(self, step: Step) -> str:
        """What the line of a step begins with."""

    # Before training

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
            raise ConfigError([f"use_ema needs an ema_decay from 0 to below 1, not {ema_decay!r}"])
        self._ema_decay = ema_decay if use_ema else None
        self._optimizer = optimizer if weight_decay is None else _with_decay(optimizer, weight_decay)
        self._groups = ParameterGroups() if groups is None else groups
        self._begin_anew()

    def load_pretrain(self, model_path: str | Path, convert: bool = False) -> None:  # noqa: ARG002
        """Start from pretrained weights instead of random ones.

        Args:
            model_path: a directory in any layout that `palm.load_backbone` reads, or the name of a model at
                Hugging Face, `owner/name`.
            convert: accepted; a packed model is recognised by itself.

        Raises:
            PalmError: neither `build_forward` nor `build_predict_forward` was called.
            StorageError: no weights there, or weights of another shape.
        """
        forwards = self._loadable("load_pretrain")
        logger.info("Loading pretraining parameters from %s...", model_path)
        load_pretrain(next(iter(forwards.values())).backbone, pretrained_directory(model_path))

    def load_ckpt(self, model_path: str | Path) -> None:
        """Go on from a checkpoint: weights, optimizer, averages and position; or predict with its weights.

        Args:
            model_path: what `set_saver`, `save` or a `Controller` wrote.

        Raises:
            PalmError: neither `build_forward` nor `build_predict_forward` was called.
            StorageError: missing, damaged, or of other tasks; names what differs.
        """
        path = Path(model_path)
        forwards = self._loadable("load_ckpt")
        logger.info("Load model from %s", path)
        self._begin_anew()
        self._checkpoint = path
        if self._optimizer is not None and self._is_fitted():
            self._training("load_ckpt")
        else:
            _load_trained(forwards, path)

    def set_saver(self, save_path: str | Path, save_steps: int, save_type: str = "ckpt") -> None:
        """Save every `save_steps` steps, and at the end of the training.

        Args:
            save_path: checkpoints go to `<save_path>/ckpt.step<N>`, models to `<save_path>/pred.step<N>`.
            save_steps: 0 or less: only at the end.
            save_type: 'ckpt', 'predict' (a model for `palm.load_model`) or 'ckpt,predict'.

        Raises:
            ConfigError: another `save_type`.
        """
        self._saver = Saver(self._save, Path(save_path), save_steps, save_type)

    # Training

    def train(self, print_steps: int = 5) -> None:
        """Train until every target has had its steps.

        Args:
            print_steps: a log line every so many steps.

        Raises:
            PalmError: a call is missing; names it.
            TrainingError: a loss that is not a number.
        """
        run = self._training("train")
        log = StepLog(print_steps, self._heading)
        for step in run.steps():
            log(step)
            self._after(step)
        log_counts(run)
        if self._saver is not None:
            self._saver.finish(run.step)

    def save(self, save_path: str | Path, save_type: str = "ckpt") -> None:
        """Save the present state now.

        Args:
            save_path: the directory to write; it appears whole or not at all.
            save_type: 'ckpt' or 'predict'.

        Raises:
            PalmError: a call is missing; names it.
        """
        for kind in kinds_of(save_type):
            self._save(Path(save_path), kind)

    @property
    def cur_train_step(self) -> int:
        """Steps so far."""
        return 0 if self._run is None else self._run.step

    def averaged(self) -> AbstractContextManager[Any]:
        """Within this context there are averaged weights, where the run keeps averages."""
        return nullcontext() if self._run is None else self._run.averaged()

    def _train_on(self, task: Task, batch: Tensors) -> Tensors:
        _check_single([task], "train_one_step")
        step = self._training("train_one_step").step_on(task, [batch])
        self._after(step)
        return {f"{task.name}.loss": step.loss.reshape(1).cpu()}

    def _after(self, step: Step) -> None:
        if self._saver is not None:
            self._saver(step)

    def _batches(self, tasks: list[Task]) -> Iterator[tuple[int, Tensors]]:
        """The number of the drawn task and its batch, step by step, as `train` would take them."""
        _check_single(tasks, "get_one_batch")
        if self._checkpoint is not None:
            self._training("get_one_batch")  # which knows where it stopped
        seed = seed_of(task.reader for task in tasks)
        handed = Counter({task.name: task.step for task in tasks})
        for position in count(self.cur_train_step):
            progress = [task.standing(handed[task.name]) for task in tasks]
            number = self._mixing.draw(seed, position, progress)
            task = tasks[number]
            (batch,) = task.batches(handed[task.name])
            yield number, batch
            handed[task.name] += 1

    def _next_draw(self) -> tuple[int, Tensors]:
        if self._draws is None:
            self._draws = self._batches(self._tasks("get_one_batch"))
        return next(self._draws)

    # The run

    def _begin_anew(self) -> None:
        """What is changed now concerns a run that is still to be assembled."""
        self._run, self._draws = None, None

    def _training(self, caller: str) -> Training:
        """The run, assembled on first use."""
        if self._run is None:
            run = self._assembled(caller)
            checkpoint, self._checkpoint = self._checkpoint, None
            if checkpoint is not None:
                load_checkpoint(run, checkpoint, _identity(run, self._settings()))
            self._run = run
        return self._run

    def _assembled(self, caller: str) -> Training:
        forwards = self._forwards(caller)
        optimizer = needed(self._optimizer, self.name, "build_backward(optimizer)", caller)
        tasks, device = self._tasks(caller), device_of(use_gpu=True)
        backbone = next(iter(forwards.values())).backbone
        model = MultiTaskModel(backbone, tasks, resolved(self._precision, device)).to(device)
        built = build_optimizer(optimizer, self._groups, model, tasks)
        return Training(
            model,
            tasks,
            built,
            _schedule_of(optimizer),
            seed_of(task.reader for task in tasks),
            optimizer.grad_clip,
            None
            if self._ema_decay is None
            else ExponentialMovingAverage(moving_parameters(model), self._ema_decay),
            device,
            self._mixing,
            optimizer.grad_clip_type,
        )

    def _settings(self) -> dict[str, Any]:
        """What of this run its checkpoints must have been made with, JSON-ready."""
        assert self._optimizer is not None
        settings = {
            name: value
            for name, value in self._optimizer.settings.items()
            if isinstance(value, int | float | str)
        }
        kind = type(self._optimizer).__name__
        mixing = {"name": type(self._mixing).__name__, **self._mixing.settings}
        return {
            "optimizer": {"name": kind, **settings},
            "groups": self._groups.settings,
            "ema_decay": self._ema_decay,
            "mixing": mixing,
        }

    def _save(self, path: Path, kind: str) -> None:
        run = self._training("save")
        self._write(run, path, kind)
        barrier()  # whoever goes on may read it

    def _write(self, run: Training, path: Path, kind: str) -> None:
        if kind == "ckpt":
            save_checkpoint(run, path, _identity(run, self._settings()))
            logger.info("checkpoint has been saved at %s", path)
            return
        with run.averaged():
            for task in run.tasks:
                folder = path if len(run.tasks) == 1 else path / task.name
                backbone = run.model.backbone
                InferenceModel(task.name, task.reader, backbone, task.head, task.pred_batch_size).save(
                    folder, overwrite=True
                )
        logger.info("predict model has been saved at %s", path)


def needed(value: T | None, name: str, call: str, caller: str) -> T:
    """`value`, which a call before should have set.

    Raises:
        PalmError: it did not happen; names the call.
    """
    if value is None:
        raise PalmError(f"trainer {name!r}: {caller} comes too early; call {call} first")
    return value


def _check_single(tasks: Iterable[Task], caller: str) -> None:
    for task in tasks:
        if task.gradient_accumulation_steps > 1:
            raise PalmError(
                f"trainer {task.name!r}: {caller} concerns a step of one batch, and here a step has "
                f"{task.gradient_accumulation_steps}; call train(), or set gradient_accumulation_steps to 1"
            )


def seed_of(readers: Iterable[Reader]) -> int:
    """The first seed that a reader was given; 1 if none was."""
    return next((reader.seed for reader in readers if reader.seed is not None), 1)


def _with_decay(optimizer: Optimizer, weight_decay: float) -> Optimizer:
    if "weight_decay" not in optimizer.settings:
        raise ConfigError([f"weight_decay: {type(optimizer).__name__} has none; leave it out"])
    return type(optimizer)(**{**optimizer.settings, **optimizer.given_2x, "weight_decay": weight_decay})


def _schedule_of(optimizer: Optimizer) -> Schedule:
    schedule: Schedule | None = optimizer.given_2x.get(
        "lr_scheduler", getattr(optimizer, "lr_scheduler", None)
    )
    return WarmupScheduler(0) if schedule is None else schedule


def _identity(run: Training, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint and the run that goes on from it must agree in: all but how long and how fast."""
    tasks = {task.name: task.identity() for task in run.tasks}
    for identity in tasks.values():
        del identity["expected_steps"]
    return {
        **settings,
        "random_seed": run.seed,
        "precision": run.model.precision,
        "backbone": run.model.backbone.settings,
        "tasks": tasks,
    }


def _load_trained(forwards: Mapping[str, Forward], path: Path) -> None:
    weights = trained_weights(path)
    for name, forward in forwards.items():
        if name not in weights.heads:
            known = ", ".join(weights.heads)
            raise StorageError(
                f"{path} has no task {name!r}; it has {known}. Name the trainer as in training"
            )
        load_into(forward.backbone, weights.backbone, path)
        load_into(forward.head, weights.heads[name], path)
