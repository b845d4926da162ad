"""Starting a run from the weights of another one: its encoder, and the heads of common tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.backbone import Backbone
from palm.core.errors import StorageError
from palm.core.files.manifest import verify
from palm.core.files.serialization import file_settings
from palm.core.files.tensors import load_into, load_tensors, weights_under
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.engine.inference.model_paths import DESCRIPTION, WEIGHTS, chosen_model
from palm.engine.run.checkpoint import TrainedWeights, trained_weights
from palm.engine.run.run_names import STATE
from palm.engine.training.task import Task
from palm.paradigm import Head
from palm.pretrained import vocabulary_differences
from palm.reader.text.labels import Labels, moved_labels

ALL_HEADS = "heads"
"""What `reset` calls the heads of all tasks."""


def saved_weights(path: Path) -> TrainedWeights:
    """Read the weights that a folder holds: a checkpoint, also one without optimizer, or a task's model.

    Args:
        path: the folder; or that of a task, or of a run of one task, for its best model, or else its last.

    Raises:
        StorageError: none of them, damaged, or of another version.
    """
    if (path / STATE).is_file():
        return trained_weights(path)
    folder = chosen_model(path)
    verify(folder, (DESCRIPTION, WEIGHTS))
    weights = load_tensors(folder / WEIGHTS)
    with wrap_read_errors(folder / DESCRIPTION):
        description = read_object(folder / DESCRIPTION)
        task = str(description["task"])
        readers = {task: file_settings(description["reader"]["settings"], folder)}
    heads = {task: weights_under("paradigm", weights)}
    return TrainedWeights(weights_under("backbone", weights), heads, readers)


def _check_vocabularies(tasks: Sequence[Task], saved: TrainedWeights) -> None:
    theirs = next((v for r in saved.readers.values() if isinstance(v := r.get("vocab_path"), Path)), None)
    for ours in dict.fromkeys(task.reader.vocab_path for task in tasks):
        for line in vocabulary_differences(ours, theirs):
            raise StorageError(f"start_from: {line}, or take the encoder alone with pretrain_path")


def start_from(backbone: Backbone, tasks: Sequence[Task], path: Path, reset: Collection[str] = ()) -> None:
    """Give a run the weights of another one: the encoder, and the heads of tasks that both have.

    Args:
        backbone: of the new run.
        tasks: of the new run; some may share a head.
        path: as for `saved_weights`.
        reset: tasks whose heads start anew, or `heads` for all.

    Raises:
        StorageError: no whole weights there, of another shape, or trained with other ids of tokens or labels.
    """
    saved = saved_weights(path)
    _check_vocabularies(tasks, saved)
    load_into(backbone, saved.backbone, path)
    # By head, not by name: tasks may share one, and then it starts anew for all of them.
    anew = {task.head for task in tasks if task.name in reset or ALL_HEADS in reset}
    kept = [task for task in tasks if task.name in saved.heads and task.head not in anew]
    loaded: dict[Head, str] = {}
    for task in kept:
        try:
            _check_labels(task, saved.readers.get(task.name, {}), path)
            if task.head not in loaded:
                load_into(task.head, saved.heads[task.name], path)
        except StorageError as error:
            remedy = f"To start the head of {task.name!r} anew: reset: [{task.name}]"
            raise StorageError(f"{error}\n{remedy}") from None
        loaded.setdefault(task.head, task.name)
    new = ", ".join(task.name for task in tasks if task.head not in loaded)
    common = ", ".join(task.name for task in tasks if task.head in loaded)
    logger.info("weights loaded from %s; heads: %s; anew: %s", path, common or "none", new or "none")


def _check_labels(task: Task, saved: Mapping[str, Any], path: Path) -> None:
    """Compare the labels of a task with those that its head was trained with.

    Raises:
        StorageError: one has another id.
    """
    maps = [reader.get("label_map") for reader in (task.reader.settings, saved)]
    if None not in maps and (moved := moved_labels(*(Labels(None, each).names for each in maps))):
        raise StorageError(
            f"task {task.name!r}: label_map: {moved} in {path}; set label_map to that of these weights"
        )
