"""The directory of a saved model: the encoder once, and what belongs to each of its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from palm.backbone import BACKBONES, Backbone
from palm.config.files import ADAPTER_CONFIG
from palm.core.component import path_problems, raise_any
from palm.core.group import is_main_process
from palm.core.io import linked, manifest_of, new_directory, wrap_read_errors, write_json, write_text
from palm.core.saved import Tensors, describe, file_settings, load_tensors, save_tensors, weights_under
from palm.core.version import __version__
from palm.paradigm import HEADS, Head
from palm.reader import READERS, Reader
from palm.train.model_card import CARD, label_names, model_card
from palm.train.model_paths import (
    ADAPTERS,
    DESCRIPTION,
    FORMAT,
    HEAD_WEIGHTS,
    VERSION,
    WEIGHTS,
    head_place,
)

if TYPE_CHECKING:
    from palm.train.task_model import TaskModel


def save_models(
    models: Sequence[TaskModel],
    backbone: Backbone,
    folder: str | Path,
    run: Mapping[str, Any] | None = None,
    training: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    *,
    overwrite: bool = False,
    encoder: Path | None = None,
) -> None:
    """Write one self-contained directory: weights, components and settings, vocabulary, labels, a card.

    Args:
        models: the model of each task.
        backbone: the encoder that they share; their own may have adapters, which are then saved beside it.
        folder: a new folder, written atomically. All ranks must call this; rank 0 writes.
        run: the configuration of the run that trained the models, stored for the record.
        training: task -> its training data and scores (see `palm.train.checkpoint`), also stored.
        overwrite: replace an existing folder if palm wrote it and it contains nothing else.
        encoder: a file of another saved model with the same encoder, to which a hard link is made, if
            possible, instead of a copy.

    Raises:
        StorageError: the folder exists or cannot be written; nothing is left half-written.
    """
    raise_any(path_problems(folder=folder))
    if not is_main_process():
        return
    with new_directory(Path(folder), overwrite) as part:
        if encoder is None or not linked(encoder, part / WEIGHTS):
            save_tensors(part / WEIGHTS, backbone.state_dict(prefix="backbone."))
        save_tensors(part / HEAD_WEIGHTS, _head_weights(models))
        for model in models:
            if model.adapted is not None:
                is_merged = model.backbone is backbone
                model.adapted.write(part / (ADAPTERS if is_merged else f"{ADAPTERS}/{model.task}"))
        description = _described(models, backbone, part, run or {}, training)
        write_json(part / DESCRIPTION, description)
        labels = {model.task: label_names(model.reader, model.head) for model in models}
        card = model_card(description, labels, models[0].example, answer=models[0].answer())
        write_text(part / CARD, card)


def _described(
    models: Sequence[TaskModel],
    backbone: Backbone,
    folder: Path,
    run: Mapping[str, Any],
    training: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the content of `config.json`; files of the components are copied to the folder."""
    parts = {model.task: (model.reader, model.head) for model in models}
    description = {
        "format": FORMAT,
        "version": VERSION,
        "palm_version": __version__,
        **described_components(backbone, parts, folder),
        "run": run,
    }
    heads = [model.head for model in models]
    for model in models:
        description["tasks"][model.task] |= {
            "batch_size": model.batch_size,
            "head": heads.index(model.head),
            "training": training.get(model.task, {}),
        }
    return description


def _head_weights(models: Sequence[TaskModel]) -> Tensors:
    """Return the weights of the heads; a head that tasks share belongs to the first of them."""
    heads = [model.head for model in models]
    own: Tensors = {}
    for number, head in enumerate(heads):
        if heads.index(head) == number:
            own |= head.state_dict(prefix=f"tasks.{number}.paradigm.")
    return own


def described_components(
    backbone: Backbone, tasks: Mapping[str, tuple[Reader, Head]], folder: Path
) -> dict[str, Any]:
    """Describe all that is needed, besides the weights, to predict with tasks.

    Args:
        backbone: their encoder.
        tasks: task -> its reader and its head.
        folder: receives copies of the files that settings name, equal ones once.
    """
    known: dict[str, Path] = {}  # tasks mostly have the same vocabulary
    found: dict[str, Any] = {}
    for number, (task, (reader, head)) in enumerate(tasks.items()):
        # Other programs expect the vocabulary beside the weights.
        place = f"tasks/{task}" if number else ""
        found[task] = {
            "reader": describe(READERS, reader, folder, place, known),
            "paradigm": describe(HEADS, head, folder, place, known),
        }
    return {"backbone": describe(BACKBONES, backbone, folder), "tasks": found}


@dataclass(frozen=True)
class TrainedWeights:
    """Weights to predict with: the averaged ones if the run kept averages.

    Args:
        backbone: weights of the encoder, by name.
        heads: task -> weights of its head, by name.
        readers: task -> settings of its reader, with paths of files in the folder.
        adapters: task -> the folder with its adapters, which are not in the encoder.
    """

    backbone: Tensors
    heads: dict[str, Tensors]
    readers: dict[str, dict[str, Any]]
    adapters: dict[str, Path] = field(default_factory=dict)


def reader_settings(tasks: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return task -> the settings of its reader in a description, with files of the folder as paths."""
    return {task: file_settings(saved["reader"]["settings"], folder) for task, saved in tasks.items()}


def model_weights(folder: Path, tasks: Mapping[str, Any]) -> TrainedWeights:
    """Read the weights of a saved model.

    Args:
        folder: the directory, which the caller has verified.
        tasks: its tasks (see `palm.train.model_paths.described_tasks`).

    Raises:
        StorageError: they cannot be read.
    """
    names = manifest_of(folder)
    files = [load_tensors(folder / name) for name in (WEIGHTS, HEAD_WEIGHTS) if name in names]
    weights = {name: value for file in files for name, value in file.items()}
    places = {task: f"{ADAPTERS}/{task}" for task in tasks}
    with wrap_read_errors(folder / DESCRIPTION):
        return TrainedWeights(
            weights_under("backbone", weights),
            {task: weights_under(head_place(saved), weights) for task, saved in tasks.items()},
            reader_settings(tasks, folder),
            {task: folder / place for task, place in places.items() if f"{place}/{ADAPTER_CONFIG}" in names},
        )
