"""The saved model of a task in a configuration: its folder, and the check that it fits the task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palm.controller.plan import Plan, TaskPlan
from palm.core.directories import is_sealed
from palm.core.errors import ConfigError, StorageError
from palm.core.io import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel
from palm.predict.loading import best_note, load_model
from palm.reader import READERS
from palm.train.model_paths import BEST, DESCRIPTION, LAST, chosen_model, describe_missing_model


def saved_model(plan: Plan, task: TaskPlan, given: Path | None) -> InferenceModel:
    """Load a task's model with the current settings, by default from its own folder.

    Raises:
        ConfigError: there is neither a folder nor a `save_path`.
        StorageError: there is no complete model, or it is from a task of another kind.
    """
    folder = _own_folder(plan, task) if given is None else _check_kind(task, given)
    # All settings except files replace those of the saved model, which contains its files.
    reader, head = (
        {name: value for name, value in arguments.items() if not isinstance(value, Path)}
        for arguments in (task.reader[1], task.head[1])
    )
    precision = plan.settings.get("precision", "auto")
    model = load_model(folder, precision=precision, reader=reader, head=head)
    logger.info("%s: inference model loaded from %s%s", task.name, folder, best_note(model.trained))
    if model.task != task.name:
        remedy = "leave inference_model_dir out if this is not intended"
        logger.warning("%s: the model at %s is from task %r; %s", task.name, folder, model.task, remedy)
    model.batch_size = task.task.get("pred_batch_size") or task.task.get("batch_size") or model.batch_size
    return model


def targets_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the target tasks of a configuration: all if `target_tag` is not set."""
    tasks = settings["task_instance"]
    tags = settings.get("target_tag") or [1] * len(tasks)
    # Not strict: a wrong length is reported with the other settings.
    return [task for task, tag in zip(tasks, tags, strict=False) if tag]


def with_data(plan: Plan, setting: str) -> list[str]:
    """Return the targets that have this file, and log the tasks that are left out.

    Raises:
        ConfigError: no target has it.
    """
    targets = [task for task in plan.tasks if task.name in targets_of(plan.settings)]
    found = [task.name for task in targets if task.task.get(setting) is not None]
    if not found:
        raise ConfigError(
            f"no target has a {setting}; name the data in a task's file, or with --TASK.{setting} FILE"
        )
    for task in plan.tasks:
        if task not in targets:
            logger.info("%s: left out: it is auxiliary, and models are saved only for targets", task.name)
        elif task.name not in found:
            logger.info("%s: left out: it has no %s", task.name, setting)
    return found


def save_path_of(plan: Plan) -> Path:
    """Return the folder of the run's models.

    Raises:
        ConfigError: there is no `save_path`.
    """
    path: Path | None = plan.settings.get("save_path")
    if path is None:
        raise ConfigError("save_path is needed to find the model; or give inference_model_dir")
    return path


def _own_folder(plan: Plan, task: TaskPlan) -> Path:
    folder = save_path_of(plan) / task.name
    # Without dev data, an existing best model is from another run.
    if task.task.get("dev_file") is not None and is_sealed(folder / BEST):
        return folder / BEST
    if not is_sealed(folder / LAST):
        helpers = {*plan.settings["task_instance"]} - {*targets_of(plan.settings)}
        raise StorageError(describe_missing_model(task.name, folder / LAST, task.name not in helpers))
    return folder / LAST


def _check_kind(task: TaskPlan, given: Path) -> Path:
    """Return the given folder after checking that its model is from a task of the same kind."""
    # The documentation of 0.2.1 has `infermodel` in its example and `infer_model` in its log.
    documented = given.with_name("infer_model")
    folder = documented if given.name == "infermodel" and not given.exists() else given
    saved = read_object((chosen := chosen_model(folder)) / DESCRIPTION)
    ours = {"reader": READERS.name_of(task.reader[0]), "paradigm": HEADS.name_of(task.head[0])}
    with wrap_read_errors(chosen / DESCRIPTION):
        theirs = {name: saved[name]["name"] for name in ours}
        if ours != theirs:
            components = [
                " and ".join(f"{kind} {name}" for kind, name in each.items()) for each in (theirs, ours)
            ]
            raise StorageError(
                f"the model at {chosen} is from task {saved['task']!r}, with {components[0]}; "
                f"task {task.name!r} has {components[1]}; give a model of this task"
            )
    return folder
