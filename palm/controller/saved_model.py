"""The saved model of a task in a configuration: its folder, and the check that it fits the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palm.config.run import ComponentConfig, RunConfig, TaskConfig
from palm.core.directories import is_sealed
from palm.core.errors import ConfigError, StorageError
from palm.core.io import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.predict.inference import InferenceModel
from palm.predict.loading import best_note, load_model
from palm.train.model_paths import BEST, DESCRIPTION, LAST, chosen_model, describe_missing_model


def saved_model(run: RunConfig, task: TaskConfig, given: Path | None) -> InferenceModel:
    """Load a task's model with the current settings, by default from its own folder.

    Raises:
        ConfigError: there is neither a folder nor a `save_path`.
        StorageError: there is no complete model, or it is from a task of another kind.
    """
    folder = _own_folder(run, task) if given is None else _check_kind(task, given)
    # All settings except files replace those of the saved model, which contains its files.
    reader, head = (
        {name: value for name, value in arguments.items() if not isinstance(value, Path)}
        for arguments in (_given(run, task, task.reader), _given(run, task, task.head))
    )
    model = load_model(folder, precision=run.settings.precision, reader=reader, head=head)
    logger.info("%s: inference model loaded from %s%s", task.name, folder, best_note(model.trained))
    if model.task != task.name:
        remedy = "leave inference_model_dir out if this is not intended"
        logger.warning("%s: the model at %s is from task %r; %s", task.name, folder, model.task, remedy)
    model.batch_size = task.settings.pred_batch_size or task.settings.batch_size or model.batch_size
    return model


def _given(run: RunConfig, task: TaskConfig, part: ComponentConfig) -> dict[str, Any]:
    """Return the settings of a component that the configuration gives."""
    return {name: value for name, value in part.settings.items() if (task.name, name) in run.origins}


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
    folder = run.folder / task.name
    # Without dev data, an existing best model is from another run.
    if task.settings.dev_file is not None and is_sealed(folder / BEST):
        return folder / BEST
    if not is_sealed(folder / LAST):
        raise StorageError(describe_missing_model(task.name, folder / LAST, task.settings.is_target))
    return folder / LAST


def _check_kind(task: TaskConfig, given: Path) -> Path:
    """Return the given folder after checking that its model is from a task of the same kind."""
    # The documentation of 0.2.1 has `infermodel` in its example and `infer_model` in its log.
    documented = given.with_name("infer_model")
    folder = documented if given.name == "infermodel" and not given.exists() else given
    saved = read_object((chosen := chosen_model(folder)) / DESCRIPTION)
    ours = {"reader": task.reader.name, "paradigm": task.head.name}
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
