"""The common part of `Trainer` and `MultiHeadTrainer`: training, saving and loading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, get_args

from torch import nn

from palm.compat.assembly import Assembly, Forward, Member, require, seed_of
from palm.compat.fitting import DevFiles, Metrics, set_dev_data
from palm.config.files import yaml_text
from palm.core.component import choice_problems, path_problems, raise_any, type_problems
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.io import check_target, numbered, write_text
from palm.core.logging import Progress, logger
from palm.core.process import StopRequest, is_notebook, stop_request
from palm.core.saved import load_into
from palm.core.tensor_specs import Tensors
from palm.parallel.group import barrier, broadcast, exhaust, is_main_process
from palm.pretrained import load_pretrain, pretrained_directory
from palm.train.callbacks import Callback, Event, Logged, Saved, callback_problems
from palm.train.checkpoint import save_checkpoint, trained_weights
from palm.train.evaluation import Evaluator
from palm.train.folder import only_run_in
from palm.train.loop import Training
from palm.train.model_paths import RECIPE
from palm.train.result import TrainingResult
from palm.train.run import CallbackSettings, run_training
from palm.train.saving import PeriodicSaver, save_model
from palm.train.task import TaskState

FOLDERS = {"ckpt": "ckpt", "predict": "pred"}
"""`save_type` -> prefix of the name of the saved directory."""


class TrainerBase(Assembly):
    """Base class of trainers: assembles tasks and passes them to the training loop.

    Args:
        name: for messages.
        precision: compute in 'fp32' or 'bf16'; 'auto' is bf16 on devices with fast bfloat16.

    Raises:
        ConfigError: `precision` is unknown.
    """

    def __init__(self, name: str, precision: str) -> None:
        super().__init__(name, precision)
        self._is_training = False
        self._saver: PeriodicSaver | None = None
        self._save_path: Path | None = None

    def _heading(self, logged: Logged) -> str:  # noqa: ARG002
        """Return the beginning of a step's log line."""
        return ""

    def _log_finish(self, event: Event) -> None:
        """Log that a target has finished its steps, if several tasks are trained."""

    def layers_of(self, member: Member) -> nn.Module | None:
        """Return a task's own layers of the encoder or its adapters, trained ones if there is a run."""
        if self._run is None:
            return member.own_layers
        return self._run.model.own_layers(member.name)

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
        # A task's private layers are copies of the shared ones, and need the pretrained weights, too.
        for member in self._members():
            if member.task is not None and isinstance(top := self.layers_of(member), nn.ModuleDict):
                fresh = backbone.copied_top(member.task.task.private_layers)
                top.load_state_dict(fresh.state_dict())

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
        if self._optimizer is not None and self._is_fitted():
            self._training("load_ckpt")
        else:
            self._load_trained(forwards, path)

    @staticmethod
    def _load_trained(forwards: Mapping[str, Forward], path: Path) -> None:
        """Load the weights of a checkpoint into encoders and heads, for prediction."""
        weights = trained_weights(path)
        for name, forward in forwards.items():
            if name not in weights.heads:
                known = ", ".join(weights.heads)
                raise StorageError(
                    f"{path} has no task {name!r}; it has {known}. Name the trainer as in training"
                )
            load_into(forward.backbone, weights.backbone, path)
            load_into(forward.head, weights.heads[name], path)

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
        kinds = kinds_of(save_type)

        def write(step: int) -> list[Saved]:
            paths = {kind: folder / f"{FOLDERS[kind]}.step{step}" for kind in kinds}
            return [saved for kind, path in paths.items() for saved in self._save(path, kind)]

        self._save_path = folder
        self._saver = PeriodicSaver(write, save_steps, at_end=True)

    # Training

    def train(
        self,
        print_steps: int = 5,
        *,
        dev_file: DevFiles | None = None,
        metrics: Metrics | None = None,
        eval_every_n_steps: int = -1,
        eval_every_epoch: bool = True,
        early_stopping_patience: int = -1,
        early_stopping_by: str = "task",
        progress: Progress = "auto",
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[str] = (),
    ) -> TrainingResult:
        """Train until every target has had its steps.

        With `set_saver`, the history, best models and files of loggers are written to its `save_path`.

        Args:
            print_steps: number of steps between log lines.
            dev_file, metrics: those of the task; for several tasks, task -> value.
            eval_every_n_steps, eval_every_epoch, early_stopping_patience, early_stopping_by: settings.
            progress, loggers: settings.
            callbacks: called with every event of the run, see `palm.train.callbacks`.

        Raises:
            PalmError: a call is missing, or a setting, dev data or a loss cannot be used.
            Stopped: training was stopped by a signal and there is a saver; notebook cells return normally.
        """
        raise_any(_callback_problems(print_steps, progress, callbacks))
        if self._is_training:
            raise PalmError(f"trainer {self.name!r}: train() is already running in another thread")
        # Assembling the run resets self._checkpoint.
        resumed_from = self._checkpoint
        self._settings |= {"eval_every_n_steps": eval_every_n_steps, "eval_every_epoch": eval_every_epoch}
        raise_any(choice_problems(("task", "all"), early_stopping_by=early_stopping_by))
        run, evaluator = self._evaluated(dev_file, metrics)
        if early_stopping_patience > 0 and evaluator is None:
            raise ConfigError("early_stopping_patience needs a dev_file")
        given = CallbackSettings(
            every=print_steps,
            progress=progress,
            loggers=loggers,
            callbacks=[*callbacks, self._log_finish],
            evaluator=evaluator,
            patience=early_stopping_patience,
            stop_by=early_stopping_by,
            resumed_from=resumed_from,
        )
        folder = self._save_path
        with nullcontext() if folder is None or not is_main_process() else only_run_in(folder):
            return self._train(run, given)

    def _train(self, run: Training, given: CallbackSettings) -> TrainingResult:
        given = replace(
            given,
            heading=self._heading,
            with_epochs=False,
            folder=self._save_path,
            checkpoints=self._saver,
            resume_advice=self._resume_hint,
        )
        if run.step and all(task.done for task in run.tasks if task.is_target):
            logger.warning(
                "%s: training has finished; to train from scratch, call build_forward and fit_reader",
                self.name,
            )
        configuration = run.config.to_dict()
        if given.folder is not None and is_main_process():
            write_text(given.folder / RECIPE, yaml_text(configuration))
        self._is_training = True
        try:
            # A script without a saver ends at once, because it saves nothing anyway.
            with stop_request() if is_notebook() or self._saver else nullcontext(StopRequest()) as request:
                return run_training(run, replace(given, configuration=configuration, stop_request=request))
        finally:
            self._is_training = False

    def _resume_hint(self) -> str:
        saved = {} if self._save_path is None else numbered(self._save_path, f"{FOLDERS['ckpt']}.step")
        again = "to resume, call train() of this trainer again"
        return f"{again}, or load_ckpt({str(saved[max(saved)])!r}) and train() of another" if saved else again

    def _evaluated(
        self, dev_file: DevFiles | None, metrics: Metrics | None
    ) -> tuple[Training, Evaluator | None]:
        """Return the run, and its evaluator if there is dev data."""
        forwards = self._forwards("train")
        require(self._optimizer, self.name, "build_backward(optimizer)", "train")
        tasks = self._tasks("train")
        set_dev_data([task.task for task in tasks], forwards, dev_file, metrics)
        run = self._training("train")
        return run, Evaluator.of(
            run, self._settings["eval_every_n_steps"], self._settings["eval_every_epoch"]
        )

    def save(self, save_path: str | Path, save_type: str = "ckpt") -> None:
        """Save the current state.

        Args:
            save_path: the directory to write; one that palm wrote is replaced atomically.
            save_type: 'ckpt' or 'predict'.

        Raises:
            ConfigError: `save_type` is unknown, or the directory is the working directory or above it.
            PalmError: an earlier call is missing; with the call.
            StorageError: the directory contains files that palm did not write.
        """
        here = Path.cwd()
        if Path(save_path).resolve() in (here, *here.parents):
            raise ConfigError(f"save_path should be a separate folder, not {str(save_path)!r}")
        raise_any(choice_problems(tuple(FOLDERS), save_type=save_type))
        places = self._places(Path(save_path), save_type)
        # On one rank, since another could look while that one already replaces the folder.
        broadcast(lambda: exhaust(map(partial(check_target, overwrite=True), places)))
        self._save(Path(save_path), save_type)

    def _places(self, path: Path, kind: str) -> list[Path]:
        """Return the folders that `save` writes."""
        tasks = self._training("save").tasks
        return [path] if kind == "ckpt" or len(tasks) == 1 else [path / task.name for task in tasks]

    def _save(self, path: Path, kind: str) -> list[Saved]:
        run = self._training("save")
        if kind == "ckpt":
            save_checkpoint(run, path)
            logger.info("checkpoint has been saved at %s", path)
            saved = [Saved(run.step, "checkpoint", path)]
        else:
            saved = [
                save_model(run, task, place, "target" if task.done else "on_the_way")
                for task, place in zip(run.tasks, self._places(path, kind), strict=True)
            ]
            logger.info("predict model has been saved at %s", path)
        barrier()  # afterwards, all ranks may read it
        return saved

    # Step by step

    def _train_on(self, task: TaskState, batch: Tensors) -> Tensors:
        self._check_single([task], "train_one_step")
        step = self._training("train_one_step").step_on([(task, [batch])])
        self._log_finish(step)
        if self._saver is not None:
            self._saver(step)
        return {f"{task.name}.loss": step.loss.reshape(1).cpu()}

    def _batches(self, tasks: list[TaskState]) -> Iterator[tuple[int, Tensors]]:
        """Yield the number of the drawn task and its batch for every step, in the same order as `train`."""
        self._check_single(tasks, "get_one_batch")
        if self._checkpoint is not None:
            self._training("get_one_batch")  # restores the position of the checkpoint
        seed = seed_of(task.reader for task in tasks)
        plan = self._plan("get_one_batch")
        # Counted separately from trained batches: a batch may be trained on much later, or never.
        yielded = Counter({task.name: task.step for task in tasks})
        for position in count(self.cur_train_step):
            progress = [task.progress(yielded[task.name]) for task in tasks]
            (name,) = plan.drawn(seed, position, progress)
            number = [task.name for task in tasks].index(name)
            (batch,) = tasks[number].batches(yielded[name])
            yield number, batch
            yielded[name] += 1

    def _check_single(self, tasks: Iterable[TaskState], caller: str) -> None:
        for task in tasks:
            if task.task.gradient_accumulation_steps > 1:
                raise PalmError(
                    f"trainer {task.name!r}: {caller} supports only one batch per step, and this task has "
                    f"{task.task.gradient_accumulation_steps}; call train(), or set "
                    "gradient_accumulation_steps to 1"
                )
            if self._settings.get("tasks_per_step", 1) != 1 or task.task.share_rows_with is not None:
                raise PalmError(
                    f"trainer {self.name!r}: {caller} supports only one task per step, and a step of this "
                    "trainer may have several; call train(), or remove tasks_per_step and share_rows_with"
                )

    def _next_draw(self) -> tuple[int, Tensors]:
        if self._draws is None:
            # Not before the first call, when the run's data and checkpoint are known.
            self._draws = self._batches(self._tasks("get_one_batch"))
        return next(self._draws)


def _callback_problems(print_steps: object, progress: object, callbacks: Any) -> list[str]:
    """List what is wrong with the arguments of `train` for its callbacks."""
    problems = type_problems(int, "a whole number", print_steps=print_steps)
    problems += choice_problems(get_args(Progress), progress=progress)
    return [*problems, *callback_problems(callbacks)]


def kinds_of(save_type: str) -> list[str]:
    """Split a `save_type` into its kinds.

    Raises:
        ConfigError: a kind is unknown.
    """
    kinds = [kind.strip() for kind in str(save_type).split(",")]
    if not set(kinds) <= FOLDERS.keys():
        raise ConfigError(f"save_type should be 'ckpt', 'predict' or 'ckpt,predict', not {save_type!r}")
    return kinds
