"""Starting a run from the weights of another run: its encoder, and the heads of common tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.backbone import Backbone
from palm.core.errors import StorageError
from palm.core.logging import logger
from palm.core.saved import load_into
from palm.paradigm import Head
from palm.pretrained import vocabulary_differences
from palm.reader.labels import Labels, moved_labels
from palm.train.saved_model import NO_SHARED_ENCODER, TrainedWeights, trained_weights
from palm.train.task import Task

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
