"""Names of the files and folders of a run, and the path from a run or a task to a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from palm.config.files import MODEL_NAME
from palm.core.component import text_problem
from palm.core.errors import StorageError
from palm.core.io import (
    check_version,
    is_sealed,
    numbered,
    read_object,
    stays_inside,
    wrap_read_errors,
)
from palm.train.callbacks import HISTORY_FILE

FORMAT = "palm-model"
VERSION = 2
WEIGHTS = "model.safetensors"
HEAD_WEIGHTS = "heads.safetensors"
DESCRIPTION = "config.json"
ADAPTERS = "lora"
"""For a saved model: its format; its files, with the encoder and the heads; the folder with its adapters."""

EXPORT = "palm_export.json"
EXPORT_FORMAT = "palm-export"
"""For an export: the file that describes it, and its format."""

BEST = "best_model"
LAST = "infer_model"
"""Folders of a target's models: at its best evaluation, and after its last step."""

ON_THE_WAY = f"{LAST}.step"
"""Prefix of the folders of a target's intermediate models; the step follows."""

JOINT = "model"
"""The folder in a run with several targets that holds all of them at one step, as one model."""

RECORD = "run.json"
CONFIGURATION = "resolved_config.yaml"
LOCK = ".run.lock"

RECIPE = "recipe.yaml"
"""Components of a run that was assembled in Python, in the sections of a resolved configuration."""

STAGES = "stages"
STAGE_WEIGHTS = "weights"
"""For a run with stages: the folder of its stages, and the folder of a stage's final weights."""

CHECKPOINT = "step_"
CHECKPOINT_FORMAT = "palm-checkpoint"
STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
RAW = "raw.safetensors"
"""For checkpoints, which are saved models, too: the prefix of their folders, their format, and the files with
their position, the optimizer's state and, if the saved weights are averages, the weights of the last step."""

LOGGER_FOLDERS = ("tensorboard", "wandb")
"""Loggers import from `palm.train`, so their own constants cannot be imported here."""

RUN_FILES = (RECORD, HISTORY_FILE, CONFIGURATION, RECIPE)

_NAMES = (*RUN_FILES, JOINT, STAGES, STAGE_WEIGHTS, *LOGGER_FOLDERS)
_RESERVED = re.compile("|".join([rf"{CHECKPOINT}\d+", *map(re.escape, _NAMES)]))


class RunRecord(TypedDict):
    """The content of `run.json`.

    Attributes:
        id: stored in the run's checkpoints.
        since: the time when it began.
        identity: everything that its losses depend on (see `palm.train.checkpoint`).
        total_steps: its planned steps.
        finished: the time when it ended; None before.
    """

    id: str
    since: str
    identity: Mapping[str, Any]
    total_steps: int
    finished: str | None


def description_of(folder: Path) -> dict[str, Any]:
    """Return the description of a saved model.

    Raises:
        StorageError: it is damaged, or of another version of palm.
    """
    file = folder / DESCRIPTION
    description = read_object(file)
    check_version(description, (FORMAT, VERSION), file, "load it with the version of palm that wrote it")
    with wrap_read_errors(file):
        if not description["tasks"]:
            raise ValueError("it has no tasks")
    return description


def name_problem(task: object) -> str | None:
    """Return the reason why a task's folder would clash with those of the run, or None."""
    if not isinstance(task, str) or not task.strip() or "\0" in task or text_problem(task):
        return f"the name of a task should be a non-empty string of UTF-8, not {task!r}"
    # Many file systems ignore case.
    if _RESERVED.fullmatch(task.casefold()) or task.startswith(".") or "/" in task or "\\" in task:
        return (
            f"task {task!r}: this name is reserved for files of the run under save_path (step_N, {JOINT}, "
            f"{RECORD}, hidden files, paths); rename the task"
        )
    return None


def models_of(run: Path, task: str) -> Iterator[tuple[str, Path]]:
    """Yield kind and folder of each of a task's models in the folder of a run, the best one first.

    Kinds are `best`, `last`, `joint` and `after step N`. Links out of the run are ignored.
    """
    on_the_way = sorted(numbered(run / task, ON_THE_WAY).items(), reverse=True)
    places = {
        "best": run / task / BEST,
        "last": run / task / LAST,
        "joint": run / JOINT,
        **{f"after step {number}": path for number, path in on_the_way},
    }
    for kind, path in places.items():
        if is_sealed(path) and stays_inside(run, path) and (kind != "joint" or task in tasks_of(path)):
            yield kind, path


def tasks_of(model: Path) -> list[str]:
    """Return the tasks of a saved model; none if it cannot be read."""
    with suppress(StorageError):
        return list(description_of(model)["tasks"])
    return []


def chosen_model(path: Path) -> Path:
    """Return the model or checkpoint at a path, a run's model of all targets, or the best or last model of
    its one task.

    Raises:
        StorageError: there is no model, or there are several.
    """
    if is_sealed(path):
        return path
    if is_sealed(path / JOINT) and stays_inside(path, path / JOINT):
        return path / JOINT
    if found := _model_in(path, path):
        return found
    folders = path.iterdir() if path.is_dir() else ()
    models = {folder: model for folder in sorted(folders) if (model := _model_in(folder, path))}
    if len(models) > 1:
        names = ", ".join(folder.name for folder in models)
        raise StorageError(f"{path} has models of several tasks ({names}); give one, such as {min(models)}")
    if not models:
        raise StorageError(f"{path} is not a directory that palm saved: {_advice(path)}")
    return next(iter(models.values()))


def _model_in(folder: Path, named: Path) -> Path | None:
    """Return the best or last model in a task's folder, unless a link leads out of `named`."""
    places = (folder / BEST, folder / LAST)
    return next((place for place in places if is_sealed(place) and stays_inside(named, place)), None)


def _advice(path: Path) -> str:
    if on_the_way := numbered(path, ON_THE_WAY):
        return f"its training is not finished; give {on_the_way[max(on_the_way)]}"
    if checkpoints := numbered(path, CHECKPOINT) or numbered(path.parent, CHECKPOINT):
        return f"its training is not finished; continue with --resume {checkpoints[max(checkpoints)]}"
    if not path.exists():
        if MODEL_NAME.fullmatch(name := path.as_posix()):
            return (
                f"there is no such folder; for a model from Hugging Face, use `palm download {name}`, or "
                f"train a task with pretrain_path: {name}"
            )
        return (
            "there is no such folder; train first, or give the folder of a trained task, <save_path>/<task>"
        )
    if (path / "config.json").is_file():
        return "it has no manifest.json; if it holds pretrained weights, set pretrain_path to it"
    return "it has no manifest.json; give the folder of a trained task, <save_path>/<task>"
