"""The directory of a saved model: the encoder once, and what belongs to each of its tasks.

A checkpoint is such a directory, with the state of the training beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from palm.backbone import BACKBONES, Backbone
from palm.config.files import ADAPTER_CONFIG
from palm.core.component import path_problems, raise_any
from palm.core.errors import StorageError
from palm.core.group import is_main_process
from palm.core.io import (
    make_folder,
    manifest_of,
    new_directory,
    verify,
    wrap_read_errors,
    write_json,
    write_text,
)
from palm.core.logging import logger
from palm.core.saved import (
    Tensors,
    describe,
    file_settings,
    load_into,
    load_tensors,
    save_tensors,
    weights_under,
)
from palm.core.version import __version__
from palm.paradigm import HEADS, Head
from palm.pretrained.directory import vocabulary_differences
from palm.pretrained.peft import write_adapters
from palm.reader import READERS, Reader
from palm.reader.labels import Labels, moved_labels
from palm.train.model import LORA, MultiTaskModel, head_places
from palm.train.model_card import CARD, label_names, model_card
from palm.train.model_paths import (
    ADAPTERS,
    DESCRIPTION,
    FORMAT,
    HEAD_WEIGHTS,
    VERSION,
    WEIGHTS,
    chosen_model,
    description_of,
)
from palm.train.task import Task

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
    shared: MultiTaskModel | None = None,
) -> None:
    """Write one self-contained directory: weights, components and settings, vocabulary, labels, a card.

    Args:
        models: the model of each task.
        backbone: the encoder that they share.
        folder: a new folder, written atomically. All ranks must call this; rank 0 writes.
        run: the configuration of the run that trained the models, stored for the record.
        training: task -> its training data and scores (see `palm.train.checkpoint`), also stored.
        overwrite: replace an existing folder if palm wrote it and it contains nothing else.
        shared: the model of the run, whose adapters are saved beside the encoder.

    Raises:
        StorageError: the folder exists or cannot be written; nothing is left half-written.
    """
    raise_any(path_problems(folder=folder))
    if not is_main_process():
        return
    with new_directory(Path(folder), overwrite) as part:
        save_tensors(part / WEIGHTS, backbone.state_dict(prefix="backbone."))
        heads = {model.task: model.head for model in models}
        places = head_places(heads)
        own = [heads[task].state_dict(prefix=f"{place}.") for task, place in places.items()]
        save_tensors(part / HEAD_WEIGHTS, {name: value for each in own for name, value in each.items()})
        if shared is not None:
            _write_adapters(shared, list(heads), part / ADAPTERS, run or {})
        parts = {model.task: (model.reader, model.head, model.batch_size) for model in models}
        description = described_model(backbone, parts, part, training) | {"run": run or {}}
        write_json(part / DESCRIPTION, description)
        labels = {model.task: label_names(model.reader, model.head) for model in models}
        card = model_card(description, labels, models[0].example)
        write_text(part / CARD, card)


def _write_adapters(
    shared: MultiTaskModel, tasks: Sequence[str], folder: Path, run: Mapping[str, Any]
) -> None:
    is_frozen = not any(each.requires_grad for each in shared.backbone.parameters())
    base = run["global"].get("pretrain_path") if run and is_frozen else None
    for task in tasks:
        if (adapters := shared.adapters(task)) is not None:
            place = folder if len(tasks) == 1 else folder / task
            make_folder(place)
            write_adapters(adapters, shared.backbone, place, base)


def described_model(
    backbone: Backbone,
    tasks: Mapping[str, tuple[Reader, Head, int]],
    folder: Path,
    training: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Describe all that is needed, besides the weights, to predict with tasks: the content of `config.json`.

    Args:
        backbone: their encoder.
        tasks: task -> its reader, its head and the average number of rows per prediction step.
        folder: receives copies of the files that settings name, equal ones once.
        training: task -> its training data and scores (see `palm.train.checkpoint`).
    """
    known: dict[str, Path] = {}  # tasks mostly have the same vocabulary
    places = head_places({task: head for task, (_, head, _) in tasks.items()})
    found: dict[str, Any] = {}
    for number, (task, (reader, head, batch_size)) in enumerate(tasks.items()):
        # Other programs expect the vocabulary beside the weights.
        place = f"tasks/{task}" if number else ""
        found[task] = {
            "reader": describe(READERS, reader, folder, place, known),
            "paradigm": describe(HEADS, head, folder, place, known),
            "head": places[task],
            "batch_size": batch_size,
            "training": training.get(task, {}),
        }
    return {
        "format": FORMAT,
        "version": VERSION,
        "palm_version": __version__,
        "backbone": describe(BACKBONES, backbone, folder),
        "tasks": found,
    }


NO_SHARED_ENCODER = (
    "has tasks with lora, which share no encoder; use the models that the run saved for each task"
)
"""Why a run with adapters has no weights for all tasks."""


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


def model_weights(folder: Path, tasks: Mapping[str, Any]) -> TrainedWeights:
    """Read the weights of a saved model or a checkpoint.

    Args:
        folder: the directory, which the caller has verified.
        tasks: its tasks (see `palm.train.model_paths.description_of`).

    Raises:
        StorageError: they cannot be read, or are a checkpoint's with adapters.
    """
    names = manifest_of(folder)
    weights = load_tensors(folder / WEIGHTS) | load_tensors(folder / HEAD_WEIGHTS)
    if any(name.startswith(LORA) for name in weights):
        raise StorageError(f"{folder} {NO_SHARED_ENCODER}")
    places = {task: f"{ADAPTERS}/{task}" for task in tasks}
    with wrap_read_errors(folder / DESCRIPTION):
        return TrainedWeights(
            weights_under("backbone", weights),
            {task: weights_under(saved["head"], weights) for task, saved in tasks.items()},
            {task: file_settings(saved["reader"]["settings"], folder) for task, saved in tasks.items()},
            {task: folder / place for task, place in places.items() if f"{place}/{ADAPTER_CONFIG}" in names},
        )


def trained_weights(path: Path) -> TrainedWeights:
    """Read the weights of a saved model or a checkpoint, averaged ones if the run kept averages.

    Args:
        path: the folder of either, or of a task or a run for the model that `palm.load_model` loads.

    Raises:
        StorageError: the folder is neither, is damaged, or is of another version.
    """
    folder = chosen_model(path)
    verify(folder, (DESCRIPTION, WEIGHTS, HEAD_WEIGHTS))
    return model_weights(folder, description_of(folder)["tasks"])


ALL_HEADS = "heads"
"""Value of `reset` that stands for the heads of all tasks."""


def _check_vocabularies(tasks: Sequence[Task], saved: TrainedWeights) -> None:
    theirs = next((v for r in saved.readers.values() if isinstance(v := r.get("vocab_path"), Path)), None)
    for ours in dict.fromkeys(task.reader.vocab_path for task in tasks):
        for line in vocabulary_differences(ours, theirs):
            raise StorageError(f"start_from: {line}, or load only the encoder with pretrain_path")


def start_from(backbone: Backbone, tasks: Sequence[Task], path: Path, reset: Collection[str] = ()) -> None:
    """Load the weights of another run: the encoder, and the heads of tasks that both runs have.

    Args:
        backbone: the encoder of the new run.
        tasks: the tasks of the new run; some may share a head.
        path: as for `trained_weights`.
        reset: tasks whose heads keep their initialization, or `heads` for all.

    Raises:
        StorageError: the weights are missing, damaged, of another shape, or were trained with other token or
            label ids.
    """
    saved = trained_weights(path)
    if saved.adapters:
        raise StorageError(f"{path} {NO_SHARED_ENCODER}")
    _check_vocabularies(tasks, saved)
    load_into(backbone, saved.backbone, path)
    # By head, not by name: tasks may share a head, which is then reset for all of them.
    reset_heads = {task.head for task in tasks if task.name in reset or ALL_HEADS in reset}
    kept = [task for task in tasks if task.name in saved.heads and task.head not in reset_heads]
    loaded: set[Head] = set()
    for task in kept:
        try:
            _check_labels(task, saved.readers.get(task.name, {}), path)
            if task.head not in loaded:
                load_into(task.head, saved.heads[task.name], path)
        except StorageError as error:
            remedy = f"To train the head of {task.name!r} from scratch: reset: [{task.name}]"
            raise StorageError(f"{error}\n{remedy}") from None
        loaded.add(task.head)
    new = ", ".join(task.name for task in tasks if task.head not in loaded)
    common = ", ".join(task.name for task in tasks if task.head in loaded)
    logger.info("weights loaded from %s; heads: %s; new heads: %s", path, common or "none", new or "none")


def _check_labels(task: Task, saved: Mapping[str, Any], path: Path) -> None:
    """Compare the labels of a task with those that its saved head was trained with.

    Raises:
        StorageError: a label has another id.
    """
    maps = [reader.get("label_map") for reader in (task.reader.settings, saved)]
    if None not in maps and (moved := moved_labels(*(Labels(None, each).names for each in maps))):
        raise StorageError(
            f"task {task.name!r}: label_map: {moved} in {path}; use the label_map of these weights"
        )
