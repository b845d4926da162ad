"""What `Trainer` and `MultiHeadTrainer` have in common: an optimizer, a run, saving and loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from palm.backbone import Backbone
from palm.balance import Balance
from palm.core.checks import choice_problems, raise_any
from palm.core.contract import Tensors
from palm.core.device import device_of
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.logging import logger, show_on_console
from palm.core.precision import checked
from palm.core.storage import load_into
from palm.distributed import barrier, is_first, join
from palm.downloader import pretrained_directory
from palm.engine.build import start
from palm.engine.checkpoint import load_checkpoint, save_checkpoint, trained_weights
from palm.engine.evaluation import EarlyStopping, Evaluator
from palm.engine.events import Completed, Event, Logged, Observer, Saved
from palm.engine.loop import Step, Training
from palm.engine.progress import Progress
from palm.engine.recipe import LossScale, Recipe, TasksPerStep
from palm.engine.result import TrainingResult
from palm.engine.running import Watch, run_training
from palm.engine.saving import BestSaver, save_model
from palm.engine.task import Task, wiring_problems
from palm.engine.trackers import trackers_of
from palm.engine.transfer import TransferProbe
from palm.lr_sched import Schedule, WarmupScheduler
from palm.mixing import Mixing, MixRatio
from palm.optimizer import Adam, AdamW, Optimizer, ParameterGroups
from palm.paradigm import Head
from palm.pretrained import load_pretrain
from palm.reader import Reader

T = TypeVar("T")

DevFiles = str | Path | Mapping[str, str | Path]
"""A data file with labels, or task -> file."""


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


FOLDERS = {"ckpt": "ckpt", "predict": "pred"}
"""Kind of what is saved -> the beginning of its directory's name."""


class Saver:
    """Saves every so many steps, and once more when a training ends in between.

    Args:
        save: writes one directory, given its path and kind, and tells what it saved.
        save_path: where directories go: `ckpt.step<N>` and `pred.step<N>`.
        save_steps: 0 or less: only at the end.
        save_type: 'ckpt', 'predict' or both, with a comma between them.

    Raises:
        ConfigError: another `save_type`.
    """

    def __init__(
        self, save: Callable[[Path, str], list[Saved]], save_path: Path, save_steps: int, save_type: str
    ) -> None:
        self.save, self.save_path, self.save_steps = save, save_path, save_steps
        self.kinds = kinds_of(save_type)
        self._saved: int | None = None

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Completed):
            return [] if self._saved == event.step else self._save(event.step)
        if isinstance(event, Step) and self.save_steps > 0 and event.number % self.save_steps == 0:
            return self._save(event.number)
        return []

    def _save(self, step: int) -> list[Saved]:
        paths = {kind: self.save_path / f"{FOLDERS[kind]}.step{step}" for kind in self.kinds}
        self._saved = step
        return [saved for kind, path in paths.items() for saved in self.save(path, kind)]


def kinds_of(save_type: str) -> list[str]:
    """The kinds that a `save_type` names.

    Raises:
        ConfigError: for an unknown one.
    """
    kinds = [kind.strip() for kind in save_type.split(",")]
    if not set(kinds) <= FOLDERS.keys():
        raise ConfigError([f"save_type should be 'ckpt', 'predict' or 'ckpt,predict', not {save_type!r}"])
    return kinds


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
        self._schedule: Schedule = WarmupScheduler(0)
        self._groups = ParameterGroups()
        self._ema_decay: float | None = None
        self._run: Training | None = None
        self._saver: Saver | None = None
        self._checkpoint: Path | None = None
        self._draws: Iterator[tuple[int, Tensors]] | None = None
        self._mixing: Mixing = MixRatio()
        self._tasks_per_step: TasksPerStep = 1
        self._loss_scale: LossScale = "none"
        self._balance: Balance | None = None
        self._eval_every = (-1, False)

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
    def _heading(self, logged: Logged) -> str:
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
        own_schedule = getattr(optimizer, "lr_scheduler", None)
        self._schedule = optimizer.given_2x.get("lr_scheduler", own_schedule) or WarmupScheduler(0)
        self._optimizer = _ours(optimizer, weight_decay)
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

    def train(
        self,
        print_steps: int = 5,
        *,
        dev_file: DevFiles | None = None,
        metrics: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        eval_every_n_steps: int = -1,
        eval_every_epoch: bool = True,
        early_stopping_patience: int = -1,
        early_stopping_by: str = "task",
        progress: Progress = "auto",
        callbacks: Sequence[Observer] = (),
        trackers: Sequence[str] = (),
        transfer_every_n_steps: int | Literal["auto"] = -1,
    ) -> TrainingResult:
        """Train until every target has had its steps.

        With `set_saver`, its `save_path` also gets `history.jsonl`, the best model of every target that has
        dev data (`<task>/best_model`), and what trackers keep.

        Args:
            print_steps: a log line every so many steps.
            dev_file: data with labels to evaluate on meanwhile; of several tasks, task -> file.
            metrics: names of metrics; of several tasks, task -> names; those of the heads where absent.
            eval_every_n_steps: evaluate every so many global steps; -1: never.
            eval_every_epoch: evaluate at the end of every epoch of the main task.
            early_stopping_patience: evaluations without a better one after which a target counts as finished;
                -1: never.
            early_stopping_by: 'task' for each target by its own first metric, 'all' for all at once.
            progress: how the run shows how far it is: 'bar', 'lines', 'none' or 'auto'.
            callbacks: called with every event of the run, see `palm.engine.events`.
            trackers: 'tensorboard', 'trackio', 'wandb', 'mlflow'.
            transfer_every_n_steps: compare the tasks every so many global steps, 'auto' for as often as costs
                some 2 % of the time; -1: never.

        Returns:
            How it went, to print or to look at.

        Raises:
            PalmError: a call is missing; names it.
            ConfigError: metrics that do not fit, early stopping without dev data, or a tracker that is
                unknown or not installed.
            DataError: dev data that cannot be used, with its file and line.
            TrainingError: a loss that is not a number.
        """
        self._forwards("train")
        needed(self._optimizer, self.name, "build_backward(optimizer)", "train")
        tasks = self._tasks("train")
        self._give_dev_data(tasks, dev_file, metrics)
        raise_any(choice_problems(("task", "all"), early_stopping_by=early_stopping_by))
        resumed_from = self._checkpoint
        folder = None if self._saver is None else self._saver.save_path
        own = trackers_of(trackers, folder) if is_first() else []
        self._eval_every = eval_every_n_steps, eval_every_epoch
        run = self._training("train")
        actors: list[Observer] = [self._tell_finish]
        if transfer_every_n_steps == "auto" or transfer_every_n_steps > 0:
            actors.append(TransferProbe(run, transfer_every_n_steps))
        if any(task.dev_file is not None for task in tasks):
            evaluator = Evaluator(run, eval_every_n_steps, eval_every_epoch)
            actors.append(evaluator)
            if folder is not None:
                actors.append(BestSaver(evaluator, folder, {}))
            if early_stopping_patience > 0:
                together = early_stopping_by == "all"
                actors.append(EarlyStopping(evaluator, early_stopping_patience, together))
        elif early_stopping_patience > 0:
            raise ConfigError(["early_stopping_patience needs a dev_file"])
        if self._saver is not None:
            actors.append(self._saver)
        watch = Watch(
            every=print_steps,
            progress=progress,
            heading=self._heading,
            with_epochs=False,
            folder=folder,
            observers=[*own, *callbacks],
            resumed_from=resumed_from,
        )
        return run_training(run, actors, watch)

    def _give_dev_data(
        self,
        tasks: Sequence[Task],
        dev_file: DevFiles | None,
        metrics: Sequence[str] | Mapping[str, Sequence[str]] | None,
    ) -> None:
        """Tell the tasks what they are evaluated on."""
        names = [task.name for task in tasks]
        files = _by_task(dev_file, names, "dev_file") if dev_file is not None else {}
        chosen = _by_task(metrics, names, "metrics") if metrics is not None else {}
        forwards = self._forwards("train")
        problems: list[str] = []
        for task in tasks:
            task.dev_file = Path(files[task.name]) if task.name in files else None
            task.metrics = chosen.get(task.name, task.head.metrics)
            problems += wiring_problems(task, forwards[task.name].backbone)
        raise_any(problems)

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
        self._check_single([task], "train_one_step")
        step = self._training("train_one_step").step_on(task, [batch])
        self._tell_finish(step)
        if self._saver is not None:
            self._saver(step)
        return {f"{task.name}.loss": step.loss.reshape(1).cpu()}

    @abstractmethod
    def _tell_finish(self, event: Event) -> None:
        """Log that a target has had its steps, where several are trained."""

    def _batches(self, tasks: list[Task]) -> Iterator[tuple[int, Tensors]]:
        """The number of the drawn task and its batch, step by step, as `train` would take them."""
        self._check_single(tasks, "get_one_batch")
        if self._checkpoint is not None:
            self._training("get_one_batch")  # which knows where it stopped
        seed = seed_of(task.reader for task in tasks)
        handed = Counter({task.name: task.step for task in tasks})
        for position in count(self.cur_train_step):
            progress = [task.progress(handed[task.name]) for task in tasks]
            number = self._mixing.draw(seed, position, progress)
            task = tasks[number]
            (batch,) = task.batches(handed[task.name])
            yield number, batch
            handed[task.name] += 1

    def _check_single(self, tasks: Iterable[Task], caller: str) -> None:
        for task in tasks:
            if task.gradient_accumulation_steps > 1:
                raise PalmError(
                    f"trainer {task.name!r}: {caller} concerns a step of one batch, and here a step has "
                    f"{task.gradient_accumulation_steps}; call train(), or set "
                    "gradient_accumulation_steps to 1"
                )
            if self._tasks_per_step != 1 or task.share_rows_with is not None:
                raise PalmError(
                    f"trainer {self.name!r}: {caller} concerns a step of one task, and here a step may have "
                    "several; call train(), or leave tasks_per_step and share_rows_with out"
                )

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
            run = start(self._recipe(caller))
            checkpoint, self._checkpoint = self._checkpoint, None
            if checkpoint is not None:
                load_checkpoint(run, checkpoint)
            self._run = run
        return self._run

    def _recipe(self, caller: str) -> Recipe:
        forwards = self._forwards(caller)
        optimizer = needed(self._optimizer, self.name, "build_backward(optimizer)", caller)
        tasks = self._tasks(caller)
        return Recipe(
            backbone=next(iter(forwards.values())).backbone,
            tasks=tasks,
            optimizer=optimizer,
            schedule=self._schedule,
            groups=self._groups,
            mixing=self._mixing,
            tasks_per_step=self._tasks_per_step,
            loss_scale=self._loss_scale,
            balance=self._balance,
            ema_decay=self._ema_decay,
            seed=seed_of(task.reader for task in tasks),
            device=device_of(use_gpu=True),
            precision=self._precision,
            eval_every_n_steps=self._eval_every[0],
            eval_every_epoch=self._eval_every[1],
        )

    def _save(self, path: Path, kind: str) -> list[Saved]:
        run = self._training("save")
        if kind == "ckpt":
            save_checkpoint(run, path)
            logger.info("checkpoint has been saved at %s", path)
            saved = [Saved(run.step, "checkpoint", path)]
        else:
            places = {task.name: path if len(run.tasks) == 1 else path / task.name for task in run.tasks}
            for task in run.tasks:
                save_model(run, task, places[task.name])
            logger.info("predict model has been saved at %s", path)
            on_the_way = [task.name for task in run.tasks if not task.done]
            saved = [
                Saved(run.step, "on_the_way" if name in on_the_way else "target", place, name)
                for name, place in places.items()
            ]
        barrier()  # whoever goes on may read it
        return saved


def _by_task(value: Any, names: Sequence[str], what: str) -> Mapping[str, Any]:
    """What every task gets; of one task, its value may stand alone.

    Raises:
        ConfigError: names that no task has, or no names where there are several tasks.
    """
    if not isinstance(value, Mapping):
        if len(names) > 1:
            raise ConfigError([f"{what}: there are several tasks ({', '.join(names)}); give a dict of them"])
        return {names[0]: value}
    if strange := [name for name in value if name not in names]:
        raise ConfigError([f"{what} names {', '.join(strange)}; there are {', '.join(names)}"])
    return value


def needed(value: T | None, name: str, call: str, caller: str) -> T:
    """`value`, which a call before should have set.

    Raises:
        PalmError: it did not happen; names the call.
    """
    if value is None:
        raise PalmError(f"trainer {name!r}: {caller} comes too early; call {call} first")
    return value


def seed_of(readers: Iterable[Reader]) -> int:
    """The first seed that a reader was given; 1 if none was."""
    return next((reader.seed for reader in readers if reader.seed is not None), 1)


def _ours(optimizer: Optimizer, weight_decay: float | None) -> Optimizer:
    """The optimizer of a run; `Adam` is but the constructor of 2.x for what the registry calls adam."""
    settings = {**optimizer.settings, **optimizer.given_2x}
    if weight_decay is not None:
        if "weight_decay" not in settings:
            raise ConfigError([f"weight_decay: {type(optimizer).__name__} has none; leave it out"])
        settings["weight_decay"] = weight_decay
    if type(optimizer) is Adam:
        names = ("learning_rate", "weight_decay", "grad_clip", "grad_clip_type", "epsilon_hat")
        return AdamW(**{name: settings[name] for name in names})
    return optimizer if weight_decay is None else type(optimizer)(**settings)


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
