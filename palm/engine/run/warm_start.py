"""Starting a run from the weights of another one: its encoder, and the heads of common tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from palm.backbone import Backbone
from palm.core.errors import StorageError
from palm.core.files.manifest import verify
from palm.core.files.tensors import load_into, load_tensors, weights_under
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.engine.inference.inference import DESCRIPTION, WEIGHTS
from palm.engine.inference.model_paths import chosen_model
from palm.engine.run.checkpoint import STATE, TrainedWeights, trained_weights
from palm.paradigm import Head

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
        task = str(read_object(folder / DESCRIPTION)["task"])
    return TrainedWeights(weights_under("backbone", weights), {task: weights_under("paradigm", weights)})


def start_from(
    backbone: Backbone, heads: Mapping[str, Head], path: Path, reset: Collection[str] = ()
) -> None:
    """Give a run the weights of another one: the encoder, and the heads of tasks that both have.

    Args:
        backbone: of the new run.
        heads: task -> its head; tasks may share one.
        path: as for `saved_weights`.
        reset: tasks whose heads start anew, or `heads` for all.

    Raises:
        StorageError: no whole weights there, or of another shape.
    """
    saved = saved_weights(path)
    load_into(backbone, saved.backbone, path)
    anew = {head for task, head in heads.items() if task in reset or ALL_HEADS in reset}
    loaded: dict[Head, str] = {}
    for task, head in heads.items():
        if head in anew or head in loaded or task not in saved.heads:
            continue
        try:
            load_into(head, saved.heads[task], path)
        except StorageError as error:
            raise StorageError(f"{error}\nTo start the head of {task!r} anew: reset: [{task}]") from None
        loaded[head] = task
    new = [task for task, head in heads.items() if head not in loaded]
    kept = ", ".join(task for task in heads if task not in new) or "none"
    logger.info("weights loaded from %s; heads: %s; anew: %s", path, kept, ", ".join(new) or "none")
