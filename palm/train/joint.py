"""Several tasks saved as one model: the encoder once, and what belongs to each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.backbone import BACKBONES, Backbone
from palm.config.files import ADAPTER_CONFIG
from palm.core.group import is_main_process
from palm.core.io import (
    manifest_of,
    new_directory,
    wrap_read_errors,
    write_json,
    write_text,
)
from palm.core.saved import Tensors, describe, file_settings, weights_under
from palm.core.version import __version__
from palm.paradigm import HEADS
from palm.reader import READERS
from palm.train.checkpoint import TrainedWeights
from palm.train.model_card import CARD, joint_card
from palm.train.model_paths import ADAPTERS, DESCRIPTION, FORMAT, VERSION, tasks_in
from palm.train.task_model import TaskModel, read_weights, write_weights


def save_joint(
    models: Sequence[TaskModel],
    backbone: Backbone,
    folder: Path,
    run: Mapping[str, Any],
    training: Mapping[str, Mapping[str, Any]],
    encoder: Path | None = None,
) -> None:
    """Write one self-contained directory for several tasks, which replaces one of palm.

    Args:
        models: the models of the tasks. Their encoders may have adapters.
        backbone: the encoder that they share.
        folder: written atomically. All ranks must call this; rank 0 writes.
        run: the configuration of the run.
        training: task -> its training data and scores (see `palm.train.checkpoint`).
        encoder: as for `TaskModel.save`.

    Raises:
        StorageError: the folder cannot be written; nothing is left half-written.
    """
    if not is_main_process():
        return
    weights = {**backbone.state_dict(prefix="backbone."), **_head_weights(models)}
    with new_directory(folder, overwrite=True) as part:
        write_weights(part, weights, encoder)
        for model in models:
            if model.adapted is not None:
                model.adapted.write(part / ADAPTERS / model.task)
        description = {
            "format": FORMAT,
            "version": VERSION,
            "palm_version": __version__,
            "backbone": describe(BACKBONES, backbone, part),
            "tasks": _described(models, part, training),
            "run": run,
        }
        write_json(part / DESCRIPTION, description)
        write_text(part / CARD, joint_card(description))


def _head_weights(models: Sequence[TaskModel]) -> Tensors:
    """Return the weights of the heads; a head that tasks share belongs to the first of them."""
    heads = [model.head for model in models]
    own: Tensors = {}
    for number, model in enumerate(models):
        if heads.index(model.head) == number:
            own |= model.head.state_dict(prefix=f"tasks.{number}.paradigm.")
    return own


def _described(
    models: Sequence[TaskModel], part: Path, training: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    known: dict[str, Path] = {}  # tasks mostly have the same vocabulary
    heads = [model.head for model in models]
    found = {}
    for number, model in enumerate(models):
        # Other programs expect the vocabulary beside the weights.
        place = f"tasks/{model.task}" if number else ""
        found[model.task] = {
            "batch_size": model.batch_size,
            "reader": describe(READERS, model.reader, part, place, known),
            "paradigm": describe(HEADS, model.head, part, place, known),
            "head": heads.index(model.head),
            "training": training.get(model.task, {}),
        }
    return found


def model_weights(folder: Path, description: Mapping[str, Any]) -> TrainedWeights:
    """Read the weights of a saved model, of one task or of several.

    Args:
        folder: the directory, which the caller has verified.
        description: its description.

    Raises:
        StorageError: they cannot be read.
    """
    weights = read_weights(folder)
    with wrap_read_errors(folder / DESCRIPTION):
        tasks = tasks_in(description)
        heads = {task: f"tasks.{int(own['head'])}.paradigm" for task, own in tasks.items() if "head" in own}
        readers = {task: file_settings(saved["reader"]["settings"], folder) for task, saved in tasks.items()}
    places = {task: f"{ADAPTERS}/{task}" for task in tasks}
    files = manifest_of(folder)
    return TrainedWeights(
        weights_under("backbone", weights),
        {task: weights_under(heads.get(task, "paradigm"), weights) for task in tasks},
        readers,
        {task: folder / place for task, place in places.items() if f"{place}/{ADAPTER_CONFIG}" in files},
    )
