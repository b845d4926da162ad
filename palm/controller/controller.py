"""The config-driven front door: from YAML files to trained tasks and their predictions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from palm.config import AUTO, HelpRequested, help_text, program_arguments, read_config, yaml_text
from palm.controller import assembly
from palm.controller.settings import RunSettings
from palm.core.checks import raise_any
from palm.core.device import compiler_problems, device_of
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.logging import logger, show_on_console
from palm.core.precision import resolved
from palm.core.storage import write_text
from palm.distributed import (
    DEFAULT_TIMEOUT,
    Replica,
    barrier,
    from_first,
    is_first,
    join,
    launch,
    launch_id,
    lost_a_process,
    record_failure,
    report_missing_ranks,
)
from palm.downloader.hub import pretrained_directory, settings_of_model
from palm.engine.build import build_optimizer, moving_parameters
from palm.engine.checkpoint import load_checkpoint, newest_checkpoint
from palm.engine.ema import ExponentialMovingAverage
from palm.engine.evaluation import EarlyStopping, Evaluator, shown
from palm.engine.inference import InferenceModel, load_model
from palm.engine.logs import EpochLog, StepLog, log_counts
from palm.engine.loop import Observer, Training
from palm.engine.model import Losses, MultiTaskModel
from palm.engine.saving import BestSaver, CheckpointSaver, TargetSaver
from palm.engine.task import Task
from palm.lr_sched import schedule_of_run
from palm.pretrained import load_pretrain
from palm.reader import Predictions
from palm.reader.rows.cache import DataCache


class Controller:
    """Trains the tasks of a configuration on one shared encoder, and predicts with them.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files `<task>.yaml`; counts from the folder of `config`.
        for_train: False to predict only; then nothing that only training needs must exist.
        argv: command-line arguments that override settings (`["--batch_size", "8"]`); None reads
            the program's own, except in a notebook or under pytest.
        tasks: tasks built in Python, after those of the configuration, which then may have none;
            each brings its own `mix_ratio` and `is_target`.

    Raises:
        ConfigError: everything that is wrong with the configuration, in one report.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any],
        task_dir: str | Path = ".",
        for_train: bool = True,
        argv: Sequence[str] | None = None,
        tasks: Sequence[Task] = (),
    ) -> None:
        show_on_console()
        if argv is None:
            _report_plainly()
        try:
            words = program_arguments() if argv is None else argv
            words, found = _with_pretrained(words)
            directory = None if found is None and not for_train else _directory(found)
            self.config = read_config(config, task_dir, words, needs_tasks=not tasks, directory=directory)
        except HelpRequested:
            print(help_text(assembly.HELP, assembly.NO_SETTINGS))  # noqa: T201
            raise SystemExit(0) from None
        self.plan = assembly.plan(self.config, for_train, tasks)
        self._device = self._joined()
        self._parts = assembly.build(self.plan) if for_train else None
        logger.info("%s", self.config.printed())
        self._pretrained = False

    def _joined(self) -> torch.device:
        """Where this process computes, once there is one process for every device."""
        given = self.plan.settings.get
        device = device_of(given("use_gpu", True), given("device", "auto"))
        launch(device, given("num_devices", "auto"))
        join(device, given("process_group_timeout", DEFAULT_TIMEOUT))
        return device

    def load_pretrain(self, pretrain_path: str | Path | None = None) -> None:
        """Start from pretrained weights instead of random ones.

        Args:
            pretrain_path: a directory in any layout that `palm.load_backbone` reads, or the name of a model
                at Hugging Face, `owner/name`; the setting `pretrain_path` where absent.

        Raises:
            ConfigError: neither is given.
            StorageError: no weights there, or weights of another shape; lists what does not fit.
        """
        parts = self._trainable()
        path = pretrain_path or parts.settings.pretrain_path
        if path is None:
            raise ConfigError(["load_pretrain needs a directory: as its argument or as pretrain_path"])
        logger.info("Loading pretraining parameters from %s...", path)
        load_pretrain(parts.backbone, pretrained_directory(self._found(path)))
        self._pretrained = True

    def train(self) -> None:
        """Train until every target task has had its expected steps; saves each target as it finishes.

        Raises:
            ConfigError: draws should follow dev scores, and no task has dev data.
            DataError: a row that cannot be used, with its file and line.
            TrainingError: too few rows for a batch, or a loss that is not a number.
            StorageError: `save_path` cannot be written, or `resume` names another run's checkpoint.
        """
        parts = self._trainable()
        settings = parts.settings
        if parts.mixing.follows_scores and all(task.dev_file is None for task in parts.tasks):
            raise ConfigError([f"mixing: {settings.mixing} follows dev scores; give a task a dev_file"])
        if is_first():
            _check_writable(settings.save_path)
        if settings.pretrain_path is not None and not self._pretrained and settings.resume is None:
            self.load_pretrain()
        training = self.training()
        resolved = self.config.resolved()
        if is_first():
            write_text(settings.save_path / "resolved_config.yaml", yaml_text(resolved))
        identity = self._identity(training)
        evaluator = self._evaluator(training, resolved)
        self._resume(training, identity)
        path, keep = settings.save_path, settings.keep_last_n
        observers: list[Observer] = [
            StepLog(settings.print_every_n_steps),
            EpochLog(training),
            *([] if evaluator is None else [evaluator]),
            TargetSaver(training, path, settings.save_infermodel_every_n_steps, resolved, keep),
            CheckpointSaver(training, path, settings.save_every_n_steps, identity, keep),
        ]
        for step in training.steps():
            for observe in observers:
                observe(step)
        log_counts(training)
        if evaluator is not None:
            evaluator.finish()
        with report_missing_ranks("at the end of training"):
            barrier()  # what rank 0 has saved may be read now

    def _evaluator(self, training: Training, resolved: dict[str, Any]) -> Evaluator | None:
        """What evaluates the run, where a task has dev data."""
        settings = self._trainable().settings
        if all(task.dev_file is None for task in training.tasks):
            return None
        evaluator = Evaluator(
            training,
            settings.eval_every_n_steps,
            settings.eval_every_epoch,
            settings.best_by,
            settings.save_path / "evaluation.jsonl",
        )
        evaluator.reactions.append(BestSaver(settings.save_path, resolved))
        if settings.early_stopping_patience > 0:
            together = settings.early_stopping_by == "all"
            evaluator.reactions.append(EarlyStopping(settings.early_stopping_patience, together))
        return evaluator

    def evaluate(
        self,
        task: str,
        inference_model_dir: str | Path | None = None,
        dev_file: str | Path | None = None,
    ) -> dict[str, float]:
        """How good a task's saved model is on data with labels.

        Args:
            task: the task's name.
            inference_model_dir: `<save_path>/<task>/infer_model` where absent.
            dev_file: the task's setting `dev_file` where absent.

        Returns:
            The numbers of the task's metrics by name, those of the first metric first.

        Raises:
            ConfigError: no such task, no data, or metrics that do not fit.
            StorageError: no whole model there.
            DataError: a row that cannot be used, with its file and line.
        """
        plan = self._task_plan(task)
        path = self._data_file(plan, "dev_file", dev_file)
        scores = self._model(plan, inference_model_dir).evaluate(path, plan.task.get("metrics"))
        logger.info("%s: %s", task, ", ".join(f"{name} {shown(value)}" for name, value in scores.items()))
        return scores

    def pred(self, task: str, inference_model_dir: str | Path | None = None) -> Predictions:
        """Predict a task's `pred_file` with its saved model.

        Args:
            task: the task's name.
            inference_model_dir: `<save_path>/<task>/infer_model` where absent.

        Returns:
            The predictions, read from the files written under `pred_output_path` as they are
            needed: a sequence of records, or for mrc a mapping of question id to answer.

        Raises:
            ConfigError: no such task, or no `pred_file`.
            StorageError: no whole model there.
            DataError: a row that cannot be read, with its file and line.
        """
        plan = self._task_plan(task)
        pred_file = self._data_file(plan, "pred_file")
        model = self._model(plan, inference_model_dir)
        output = plan.task.get("pred_output_path") or self._save_path() / task
        predictions = model.predict_file(pred_file, output)
        logger.info("%s: predictions saved at %s", task, output)
        return predictions

    def _data_file(self, plan: assembly.TaskPlan, setting: str, given: str | Path | None = None) -> Path:
        path = plan.task.get(setting) if given is None else self._found(given)
        if path is None or not path.is_file():
            came = "it has none" if path is None else f"no such file: {path}"
            raise ConfigError([f"task {plan.name!r} needs a {setting}; {came}"])
        assert isinstance(path, Path)
        return path

    def _model(self, plan: assembly.TaskPlan, given: str | Path | None) -> InferenceModel:
        """A task's saved model, with what the configuration says now, where models compute."""
        folder = self._model_folder(plan.name, given)
        model = load_model(
            folder,
            precision=self.plan.settings.get("precision", "auto"),
            reader=_values(plan.reader[1]),
            head=_values(plan.head[1]),
        )
        logger.info("%s: inference model loaded from %s", plan.name, folder)
        model.batch_size = plan.task.get("pred_batch_size") or plan.task.get("batch_size") or model.batch_size
        return model.to(self._device)

    def _trainable(self) -> assembly.Parts:
        if self._parts is None:
            raise PalmError(
                "this Controller was made with for_train=False; make one with for_train=True to train"
            )
        return self._parts

    def _task_plan(self, task: str) -> assembly.TaskPlan:
        plans = {plan.name: plan for plan in [*self.plan.tasks, *map(assembly.TaskPlan.of, self.plan.given)]}
        if task not in plans:
            raise ConfigError([f"no task is called {task!r}; there are {', '.join(plans)}"])
        return plans[task]

    def _save_path(self) -> Path:
        if (path := self.plan.settings.get("save_path")) is None:
            raise ConfigError(["save_path is needed to find the model; or give inference_model_dir"])
        assert isinstance(path, Path)
        return path

    def _model_folder(self, task: str, given: str | Path | None) -> Path:
        if given is None:
            return self._save_path() / task / "infer_model"
        folder = self._found(given)
        # The 0.2.1 document writes `infermodel` in its example and `infer_model` in its log.
        documented = folder.with_name("infer_model")
        return documented if folder.name == "infermodel" and not folder.exists() else folder

    def _found(self, path: str | Path) -> Path:
        """A path given from Python: from the working directory, else from the configuration's folder."""
        beside = self.config.base / path
        return beside if not Path(path).exists() and beside.exists() else Path(path)

    def _prepare_tasks(self) -> None:
        parts = self._trainable()
        main, settings = next(task for task in parts.tasks if task.is_target), parts.settings
        cache = _data_cache(settings)
        logger.info("%s: set as main task", main.name)
        for task in parts.tasks:
            task.open_stream(settings.random_seed, cache=cache)
            assert task.stream is not None
            logger.info("%s: %d rows of training data", task.name, len(task.stream.rows))
        progress = [task.standing() for task in parts.tasks]
        num_epochs, reference = parts.settings.num_epochs, parts.tasks.index(main)
        expected = parts.mixing.expected_steps(progress, reference, num_epochs)
        for task, steps in zip(parts.tasks, expected, strict=True):
            if task.is_target and steps == 0:
                raise ConfigError(
                    [
                        f"task {task.name!r} would get no step: num_epochs {num_epochs} x mix_ratio "
                        f"{task.mix_ratio} x {main.steps_per_epoch} steps an epoch of {main.name!r} < 1"
                    ]
                )
            task.expected_steps = steps
            if task.is_target:
                logger.info("%s: expected train steps %d.", task.name, steps)

    def training(self) -> Training:
        """The run that `train` makes, for a loop of your own: `for step in controller.training().steps(): …`.

        Reads the training data and plans the steps; nothing is saved unless you do it.
        """
        parts = self._trainable()
        self._prepare_tasks()
        settings, total = parts.settings, sum(task.expected_steps for task in parts.tasks)
        logger.info("Estimated overall train steps %d.", total)
        schedule = schedule_of_run(settings.lr_scheduler, total, settings.warmup_proportion, parts.schedule)
        device = self._device
        model = MultiTaskModel(parts.backbone, parts.tasks, resolved(settings.precision, device)).to(device)
        logger.info("Computing in %s on %s.", model.precision, device.type)
        if settings.activation_checkpointing:
            parts.backbone.checkpoint_activations()
        if settings.compile:
            raise_any(compiler_problems(device))
            parts.backbone.compile()
        replica = Replica(Losses(model), settings.parallel, settings.gradient_exchange)
        optimizer = build_optimizer(parts.optimizer, parts.groups, model, parts.tasks)
        ema = (
            ExponentialMovingAverage(moving_parameters(model), settings.ema_decay)
            if settings.use_ema
            else None
        )
        return Training(
            model,
            parts.tasks,
            optimizer,
            schedule,
            settings.random_seed,
            parts.optimizer.grad_clip,
            ema,
            self._device,
            parts.mixing,
            parts.optimizer.grad_clip_type,
            replica,
        )

    def _resume(self, training: Training, identity: dict[str, Any]) -> None:
        is_restart = lost_a_process()
        folder = from_first(lambda: self._checkpoint(is_restart))
        if folder is None:
            return
        load_checkpoint(training, folder, identity)
        logger.info("resumed from %s at global step %d", folder, training.step)

    def _checkpoint(self, is_restart: bool) -> Path | None:
        """What to go on from: what a launch wrote that lost a process, or else what `resume` says."""
        settings = self._trainable().settings
        own = newest_checkpoint(settings.save_path, launch_id()) if is_restart else None
        if own is not None or settings.resume is None:
            return own
        if settings.resume != "auto":
            return self._found(settings.resume)
        newest = newest_checkpoint(settings.save_path)
        if newest is None:
            logger.info("resume: no checkpoint under %s yet; starting from the beginning", settings.save_path)
        return newest

    def _identity(self, training: Training) -> dict[str, Any]:
        """What makes this run this run: whatever its losses depend on, JSON-ready."""
        parts = self._trainable()
        settings = parts.settings
        names = ("num_epochs", "lr_scheduler", "warmup_proportion", "use_ema", "ema_decay", "random_seed")
        return {
            **{name: getattr(settings, name) for name in names},
            "precision": training.model.precision,
            "gradient_exchange": settings.gradient_exchange,
            "compile": settings.compile,
            "optimizer": {"name": settings.optimizer, **parts.optimizer.settings},
            "groups": parts.groups.settings,
            "schedule": parts.schedule,
            "backbone": parts.backbone.settings,
            "mixing": {"name": settings.mixing, **parts.mixing.settings},
            "tasks": {task.name: task.identity() for task in parts.tasks},
            **self._evaluation_identity(),
        }

    def _evaluation_identity(self) -> dict[str, Any]:
        """What of the evaluation the losses depend on: nothing, unless draws follow dev scores."""
        parts = self._trainable()
        if not parts.mixing.follows_scores:
            return {}
        metrics = {task.name: list(task.metrics) for task in parts.tasks if task.dev_file is not None}
        names = ("eval_every_n_steps", "eval_every_epoch")
        return {**{name: getattr(parts.settings, name) for name in names}, "metrics": metrics}


def _with_pretrained(argv: Sequence[str]) -> tuple[list[str], dict[str, Any] | None]:
    """`--pretrain DIR` (or owner/name) stands for the settings of a run that starts from there."""
    words: list[str] = []
    rest = list(argv)
    found = None
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name != "--pretrain" or not (equals or rest):
            words.append(name + equals + value)
            continue
        folder = value or rest.pop(0)
        found = settings_of_model(folder)
        words += ["--backbone", AUTO, "--pretrain_path", folder, "--backbone_config_path", "none"]
        words += [f"--{name}={found[name]}" for name in ("vocab_path", "do_lower_case")]
    return words, found


def _directory(found: dict[str, Any] | None) -> Callable[[Path | str], dict[str, Any]]:
    """What answers for the directory that `backbone: auto` asks: what `--pretrain` heard of it before."""
    return settings_of_model if found is None else lambda path: found  # noqa: ARG005


def _values(arguments: dict[str, Any]) -> dict[str, Any]:
    """Settings that may replace a saved model's: all but files, of which the model has its own."""
    return {name: value for name, value in arguments.items() if not isinstance(value, Path)}


def _data_cache(settings: RunSettings) -> DataCache | None:
    if not settings.use_data_cache:
        return None
    return DataCache.of_user() if settings.data_cache is None else DataCache(settings.data_cache)


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".palm-write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StorageError(
            f"save_path: cannot write to {folder}: {error.strerror or error}; give another folder"
        ) from error


def _report_plainly() -> None:
    """Let the running program end on an error that its user can act on with its message and exit code 2."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record_failure(error)
        if not isinstance(error, PalmError):
            before(kind, error, trace)
            return
        sys.stdout.flush()
        # torch.distributed wraps this hook and would keep what it writes to sys.stderr for itself.
        stream = sys.__stderr__ or sys.stderr
        stream.write(f"error: {error}\n")
        sys.exit(2)

    sys.excepthook = report
