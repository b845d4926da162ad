"""The config-driven API: from YAML files to trained tasks and their predictions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any

from palm.config import read_config
from palm.config.files import HelpRequested
from palm.config.run import ComponentConfig, RunConfig, TaskConfig, help_text, printed, with_given
from palm.config.settings import RunSettings
from palm.controller.effort import choose_by_effort
from palm.controller.resolve import HELP, NO_SETTINGS, doubtful_settings, resolve
from palm.controller.rows import choose_rows
from palm.controller.stages import stages_of, steps_of, train_stages
from palm.core.component import path_problems, raise_any, type_problems
from palm.core.device import device_of
from palm.core.errors import ConfigError, ExitCode, PalmError, StorageError
from palm.core.group import join, launch, record_failure
from palm.core.io import check_not_read, is_sealed, wrap_read_errors
from palm.core.logging import display_of, logger, set_verbosity, show_on_console, shown_score
from palm.predict.inference import InferenceModel, JointModel
from palm.predict.loading import load_models
from palm.pretrained.directory import find_vocabulary, vocabulary_differences
from palm.pretrained.loading import load_pretrain, pretrained_directory, resolve_pooling, settings_of_model
from palm.reader import Predictions
from palm.reader.tables.files import is_data, missing_reason, sources_of
from palm.train.build import build, open_data, schedule_for, start
from palm.train.callbacks import Callback, callback_problems
from palm.train.folder import RunFolder
from palm.train.loggers import logger_problems
from palm.train.loop import Components, Training
from palm.train.model_card import label_names
from palm.train.model_paths import (
    DESCRIPTION,
    JOINT,
    chosen_model,
    description_of,
)
from palm.train.result import TrainingResult
from palm.train.run import train
from palm.train.saved_model import start_from
from palm.train.task import Task


def read_run(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path,
    argv: Sequence[str] | None,
    for_train: bool,
    needs_tasks: bool,
    devices: int | None = None,
) -> RunConfig:
    """Read and resolve a configuration with the arguments of `Controller`.

    `devices` is the number of devices that will train, if it is not that of this program's processes.

    `--help` prints all settings and exits. If `argv` is None, the program's own arguments are used, and a
    PalmError ends the program with exit code 2.
    """
    raise_any(_argument_problems(config, task_dir, argv))
    if argv is None:
        report_plainly()
    try:
        found = read_config(config, task_dir, argv, needs_tasks, settings_of_model, resolves_auto=for_train)
    except HelpRequested:
        print(help_text(HELP, NO_SETTINGS))  # noqa: T201
        raise SystemExit(0) from None
    if for_train:
        choose_by_effort(found, devices)
    return resolve(found, for_train)


def _argument_problems(config: object, task_dir: object, argv: object) -> Iterator[str]:
    yield from type_problems((str, os.PathLike, Mapping), "a YAML file or a mapping", config=config)
    yield from type_problems((str, os.PathLike), "a folder", task_dir=task_dir)
    if argv is not None and (isinstance(argv, str) or not isinstance(argv, Sequence)):
        yield f"argv should be a list of words such as ['--batch_size', '8'], not {argv!r}"
    elif argv and (strange := [word for word in argv if not isinstance(word, str)]):
        yield f"argv should contain strings, not {strange[0]!r}; write {str(strange[0])!r}"


def start_processes(settings: RunSettings) -> None:
    """Start one process per device as configured, and join the others in this one."""
    device = device_of(settings.use_gpu, settings.device)
    launch(device, settings.num_devices)
    join(device, settings.process_group_timeout)


def report_plainly() -> None:
    """Replace `sys.excepthook`, so that a PalmError ends the program with its message and exit code 2."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record_failure(error)
        if not isinstance(error, PalmError):
            before(kind, error, trace)
            return
        sys.stdout.flush()
        # torch.distributed wraps this hook and captures what it writes to sys.stderr.
        stream = sys.__stderr__ or sys.stderr
        stream.write(f"error: {error}\n")
        sys.exit(ExitCode.REFUSED)

    sys.excepthook = report


def saved_models(run: RunConfig, tasks: Sequence[TaskConfig], given: Path | None) -> JointModel:
    """Load the models of tasks with the current settings.

    Args:
        run: the run.
        tasks: the tasks.
        given: the directory of a model; None for the model of all targets if there are several tasks and the
            run saved one, otherwise for the own model of each.

    Raises:
        ConfigError: there is neither a folder nor a `save_path`.
        StorageError: there is no complete model, or it is from a task of another kind.
    """
    if given is None and len(tasks) > 1 and is_sealed(run.folder / JOINT):
        given = run.folder / JOINT
    elif given is not None and given.name == "infermodel" and not given.exists():
        # The documentation of 0.2.1 has `infermodel` in its example and `infer_model` in its log.
        given = given.with_name("infer_model")
    folders = {task.name: _own_folder(run, task) if given is None else chosen_model(given) for task in tasks}
    found: dict[str, InferenceModel] = {}
    for folder in dict.fromkeys(folders.values()):
        found |= _models_in(folder, run, [task for task in tasks if folders[task.name] == folder])
    return JointModel(found)


def _models_in(folder: Path, run: RunConfig, tasks: Sequence[TaskConfig]) -> dict[str, InferenceModel]:
    """Load the models of tasks from a directory."""
    known = description_of(folder)["tasks"]
    with wrap_read_errors(folder / DESCRIPTION):
        names = {task.name: _saved_name(task, known, folder) for task in tasks}
    reader: Mapping[str, Any] = {names[task.name]: _given(run, task, task.reader) for task in tasks}
    head: Mapping[str, Any] = {names[task.name]: _given(run, task, task.head) for task in tasks}
    if len(known) == 1:
        (reader,), (head,) = reader.values(), head.values()
    precision = run.settings.precision
    models = load_models(folder, device="cpu", precision=precision, reader=reader, head=head).tasks
    found = {task.name: models[names[task.name]] for task in tasks}
    logger.info("%s: inference model loaded from %s", ", ".join(found), folder)
    for task in tasks:
        model = found[task.name]
        model.batch_size = task.settings.pred_batch_size or task.settings.batch_size or model.batch_size
        if model.task != task.name:
            remedy = "leave inference_model_dir out if this is not intended"
            logger.warning("%s: the model at %s is from task %r; %s", task.name, folder, model.task, remedy)
    return found


def _given(run: RunConfig, task: TaskConfig, part: ComponentConfig) -> dict[str, Any]:
    """Return the settings of a component that replace those of a saved model.

    These are all that the configuration gives, except files, which a saved model contains.
    """
    return {
        name: value
        for name, value in part.settings.items()
        if (task.name, name) in run.origins and not isinstance(value, Path)
    }


def with_data(run: RunConfig, setting: str) -> list[str]:
    """Return the targets that have this file, and log the tasks that are left out.

    Raises:
        ConfigError: no target has it.
    """
    targets = [task for task in run.tasks if task.settings.is_target]
    found = [task.name for task in targets if getattr(task.settings, setting) is not None]
    if not found:
        raise ConfigError(
            f"no target has a {setting}; name the data in a task's file, or with --TASK.{setting} FILE"
        )
    for task in run.tasks:
        if task not in targets:
            logger.info("%s: left out: it is auxiliary, and models are saved only for targets", task.name)
        elif task.name not in found:
            logger.info("%s: left out: it has no %s", task.name, setting)
    return found


def _own_folder(run: RunConfig, task: TaskConfig) -> Path:
    if not task.settings.is_target:
        raise StorageError(
            f"task {task.name!r} is auxiliary, and only targets are saved; set its target_tag to 1, and train"
        )
    return chosen_model(run.folder / task.name)


def _saved_name(task: TaskConfig, known: Mapping[str, Any], folder: Path) -> str:
    """Return the name of a task in a saved model, which must have one of the same kind."""
    if len(known) > 1 and task.name not in known:
        raise StorageError(f"the model at {folder} has the tasks {', '.join(known)}, not {task.name!r}")
    # A model of one task may have been trained under another name.
    saved = task.name if len(known) > 1 else next(iter(known))
    ours = f"reader {task.reader.name} and paradigm {task.head.name}"
    theirs = f"reader {known[saved]['reader']['name']} and paradigm {known[saved]['paradigm']['name']}"
    if ours != theirs:
        raise StorageError(
            f"the model at {folder} is from task {saved!r}, with {theirs}; task {task.name!r} has {ours}; "
            "give a model of this task"
        )
    return saved


class Controller:
    """Trains the tasks of a configuration on one shared encoder, and predicts with them.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files `<task>.yaml`, relative to the folder of `config`.
        for_train: False for prediction only; files and settings that only training needs may be missing.
        argv: command-line arguments that override settings (`["--batch_size", "8"]`); None for the program's
            own, except in a notebook or under pytest.
        tasks: tasks built in Python, in addition to those of the configuration, which may have none then;
            each has its own `mix_ratio` and `is_target`.

    Attributes:
        run: the resolved configuration.
        chosen: the same, with files of chosen rows in place of tables.
        stages: the parts of the run, if the setting `stages` is given; `train` trains them in turn.

    Raises:
        ConfigError: all problems of the configuration, in one report.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | RunConfig,
        task_dir: str | Path = ".",
        for_train: bool = True,
        argv: Sequence[str] | None = None,
        tasks: Sequence[Task] = (),
    ) -> None:
        show_on_console()
        if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
            raise ConfigError(f"tasks should be a list of palm.Task, not {tasks!r}")
        if isinstance(config, RunConfig):
            run = config
        else:
            run = read_run(config, task_dir, argv, for_train, needs_tasks=not tasks)
        self._given = {task.name: task for task in tasks}
        self.run = with_given(run, [task.config for task in tasks])
        set_verbosity(run.settings.quiet, run.settings.verbose)
        self.chosen = choose_rows(self.run, for_train, tells=True)
        is_staged = for_train and run.settings.stages is not None
        self.stages = stages_of(self.chosen, has_given_tasks=bool(tasks)) if is_staged else []
        self._parts = build(self.chosen, self._given) if for_train and not self.stages else None
        self._for_train = for_train
        if for_train:
            # Beside a bar, `resolved_config.yaml` is enough.
            show = logger.debug if display_of(run.settings.progress) == "bar" else logger.info
            show("%s", printed(self.run.as_written()))
        for line in self.run.reasons():
            logger.info("%s", line)
        for line in doubtful_settings(self.chosen) if for_train else ():
            logger.warning("%s", line)
        self._pretrained: str | Path | None = None

    def load_pretrain(self, pretrain_path: str | Path | None = None) -> None:
        """Start from pretrained weights instead of random ones.

        Args:
            pretrain_path: a directory in any layout that `palm.load_backbone` reads, or the name of a model
                on the Hugging Face Hub, `owner/name`; by default, the setting `pretrain_path`.

        Raises:
            ConfigError: neither is given.
            StorageError: there are no weights, or some do not fit; lists them.
        """
        self._check_for_train()
        path = pretrain_path or self.run.settings.pretrain_path
        if path is None:
            raise ConfigError("load_pretrain needs a directory: give it as the argument or as pretrain_path")
        self._parts = self._parts or build(self.chosen, self._given)
        self._load(self._parts, path)
        self._pretrained = path

    def _load(self, parts: Components, path: str | Path) -> None:
        logger.info("Loading pretraining parameters from %s...", path)
        folder = Path(pretrained_directory(self._resolve(path)))
        # Heads are loaded too if the directory has one of the same kind.
        heads = [(task.name, task.head, label_names(task.reader, task.head)) for task in parts.tasks]
        load_pretrain(parts.backbone, folder, heads)
        theirs = find_vocabulary(folder)
        for ours in dict.fromkeys(task.reader.vocab_path for task in parts.tasks):
            for line in vocabulary_differences(ours, theirs):
                logger.warning("%s", line)

    def train(self, callbacks: Sequence[Callback] = ()) -> TrainingResult:
        """Train until every target task has had its expected steps; each target is saved when it finishes.

        The result of a run that is finished already is returned from its folder. A signal ends the run after
        the current step, with a checkpoint.

        Args:
            callbacks: called with every event of the run (see `palm.train.callbacks`), in order, in
                every process.

        Returns:
            The result, to print or to inspect; `history.jsonl` has the same content.

        Raises:
            DataError, TrainingError: unusable rows, too few rows, or values that are not finite.
            StorageError: `save_path` cannot be used, or `resume` names the checkpoint of another run.
            Stopped: a signal ended the run.
        """
        raise_any(callback_problems(callbacks))
        self._check_for_train()
        start_processes(self.run.settings)
        directory = self.directory()
        if self.stages:
            # Problems of later stages are reported before the first one trains.
            steps_of(self.stages, place=self.run.placed("stages"))
            return train_stages(
                self.run, directory, self.stages, lambda run, more: Controller(run).train(more), callbacks
            )
        place = self.run.placed("loggers")
        if loggers := self.run.settings.loggers:
            raise_any(f"{place}: {line}" for line in logger_problems(loggers))
        run = replace(self.run, files=self.chosen.files)
        return train(run, directory, self._training, callbacks)

    def directory(self) -> RunFolder:
        """Return the folder of the run, which must hold none of its sources.

        Raises:
            StorageError: a file of the run would replace one of its sources.
        """
        settings = self.run.settings
        tasks = [task.settings for task in self.chosen.tasks]
        files = [file for task in tasks for file in (task.train_file, task.dev_file, task.pred_file)]
        inputs = [source for file in files if file for source in sources_of(file)]
        inputs += [Path(path) for task in self.run.tasks if (path := task.reader.settings.get("vocab_path"))]
        inputs += [path for path in (settings.start_from, settings.pretrain_path) if isinstance(path, Path)]
        for record in self.chosen.files:
            check_not_read(record, inputs)
        resume = settings.resume
        return RunFolder(
            self.run.folder,
            resume if resume in (None, "auto") else str(self._resolve(str(resume)).absolute()),
            settings.overwrite,
            inputs,
        )

    def evaluate(
        self,
        task: str,
        inference_model_dir: str | Path | None = None,
        dev_file: str | Path | None = None,
    ) -> dict[str, float]:
        """Evaluate a task's saved model (see `pred`) on data with labels, by default its `dev_file`.

        Returns:
            The values of its metrics, by name.

        Raises:
            PalmError: the task is unknown, data or a complete model is missing, or metrics do not fit.
        """
        return self._evaluated([task], inference_model_dir, dev_file)[task]

    def evaluate_all(self) -> dict[str, dict[str, float]]:
        """Evaluate every target that has a `dev_file`; the model is as for `pred_all`.

        Returns:
            Task -> the values of its metrics, by name.
        """
        return self._evaluated(with_data(self.chosen, "dev_file"))

    def _evaluated(
        self, names: Sequence[str], given: str | Path | None = None, dev_file: str | Path | None = None
    ) -> dict[str, dict[str, float]]:
        start_processes(self.run.settings)
        tasks = [self._task(name) for name in names]
        files = {task.name: self._data_file(task, "dev_file", dev_file) for task in tasks}
        models = self._models(tasks, given).tasks
        found = {}
        for task in tasks:
            scores = models[task.name].evaluate(files[task.name], task.settings.metrics)
            shown = ", ".join(f"{name} {shown_score(value)}" for name, value in scores.items())
            logger.info("%s: %s", task.name, shown)
            found[task.name] = scores
        return found

    def pred(
        self,
        task: str,
        inference_model_dir: str | Path | None = None,
        *,
        resume: bool = False,
        output: str | Path | None = None,
        shard: str | None = None,
    ) -> Predictions:
        """Predict a task's `pred_file` with its saved model.

        Args:
            task: the task's name.
            inference_model_dir: by default, `<save_path>/<task>/best_model` if the task has dev data and such
                a model, otherwise `<save_path>/<task>/infer_model`.
            resume: continue the same prediction if it was interrupted.
            output: where to write the predictions, instead of the task's `pred_output_path`.
            shard: 'K/N' to predict a part, or 'merge/N', see `InferenceModel.predict_file`.

        Returns:
            The predictions, read from their files as needed: records, or for mrc question id -> answer.
        """
        return self._predicted([task], inference_model_dir, resume, shard, output)[task]

    def pred_all(self, *, resume: bool = False, shard: str | None = None) -> dict[str, Predictions]:
        """Predict every target that has a `pred_file`.

        Several targets are predicted with the model of all of them, `<save_path>/model`: if their files have
        the same texts, its encoder reads them once. A target alone is predicted as with `pred`.

        Args:
            resume: continue the same prediction if it was interrupted.
            shard: as for `pred`.

        Returns:
            Task -> its predictions, as from `pred`.
        """
        return self._predicted(with_data(self.chosen, "pred_file"), None, resume, shard)

    def _predicted(
        self,
        names: Sequence[str],
        given: str | Path | None,
        resume: bool,
        shard: str | None,
        output: str | Path | None = None,
    ) -> dict[str, Predictions]:
        start_processes(self.run.settings)
        tasks = [self._task(name) for name in names]
        files = {}
        for task in tasks:
            place = output or task.settings.pred_output_path or self.run.folder / task.name
            files[task.name] = (self._data_file(task, "pred_file"), place)
        predictions = self._models(tasks, given).predict_files(files, resume=resume, shard=shard)
        saved = "predictions" if shard is None else f"shard {shard}"
        for name, (_, place) in files.items():
            logger.info("%s: %s saved at %s", name, saved, place)
        return predictions

    def _data_file(self, task: TaskConfig, setting: str, given: str | Path | None = None) -> Path:
        path: Path | None = getattr(task.settings, setting) if given is None else self._resolve(given)
        if path is None or not is_data(path):
            found = "it has none" if path is None else f"{missing_reason(path)}: {path}"
            raise ConfigError(f"task {task.name!r} needs a {setting}; {found}")
        return path

    def _models(self, tasks: Sequence[TaskConfig], given: str | Path | None) -> JointModel:
        folder = None if given is None else self._resolve(given)
        return saved_models(self.chosen, tasks, folder).to(self._device())

    def _device(self) -> Any:
        return device_of(self.run.settings.use_gpu, self.run.settings.device)

    def _check_for_train(self) -> None:
        if not self._for_train:
            raise PalmError(
                "this Controller was created with for_train=False; create one with for_train=True to train"
            )

    def _task(self, name: str) -> TaskConfig:
        tasks = {task.name: task for task in self.chosen.tasks}
        if not isinstance(name, str) or name not in tasks:
            raise ConfigError(f"no task is called {name!r}; known: {', '.join(tasks)}")
        return tasks[name]

    def _resolve(self, path: str | Path) -> Path:
        """Resolve a path given in Python: in the working directory, else in the configuration's folder."""
        raise_any(path_problems(path=path))
        beside = self.run.base / path
        return beside if not is_data(Path(path)) and (beside.exists() or is_data(beside)) else Path(path)

    def training(self, devices: int | None = None) -> Training:
        """Create the run of `train`, for your own loop: `for step in controller.training().steps(): …`.

        It starts from the weights of `start_from` or `pretrain_path`, if set.

        Args:
            devices: number of devices to plan the steps for, of which this process is the first; by default,
                the number of processes.
        """
        raise_any(type_problems((int, NoneType), "a whole number", devices=devices))
        if devices is None:
            start_processes(self.run.settings)
        return self._training(devices=devices)

    def _training(self, resumes: bool = False, devices: int | None = None) -> Training:
        """Create the run; one that resumes gets its weights from the checkpoint."""
        self._check_for_train()
        # Weights will change, so the next run builds its parts again.
        parts, self._parts = self._parts, None
        if parts is None:
            parts = build(self.chosen, self._given)
            if self._pretrained is not None:
                self._load(parts, self._pretrained)
        settings = self.run.settings
        if not resumes and settings.start_from is not None:
            start_from(parts.backbone, parts.tasks, settings.start_from, settings.reset or ())
        elif not resumes and settings.pretrain_path is not None and self._pretrained is None:
            self._load(parts, settings.pretrain_path)
        elif settings.pretrain_path is not None and parts.backbone.settings.get("pooling") == "model":
            resolve_pooling(parts.backbone, pretrained_directory(self._resolve(settings.pretrain_path)))
        tasks, plan = open_data(self.chosen, parts, devices)
        schedule = schedule_for(self.chosen, plan.total_steps)
        return start(self.run, parts, tasks, schedule, self._device())
