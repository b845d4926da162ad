"""The weights of an encoder and all heads, without what trains them; and how a run starts from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from palm.backbone import Backbone
from palm.core.errors import StorageError
from palm.core.files.atomic_dir import move_foreign_aside, new_directory
from palm.core.files.fs import write_json
from palm.core.files.manifest import verify
from palm.core.files.tensors import load_into, load_tensors, save_tensors, weights_under
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.distributed import full_tensors, is_first
from palm.engine.inference.inference import DESCRIPTION, WEIGHTS
from palm.engine.inference.model_paths import chosen_model
from palm.engine.run.checkpoint import STATE, TrainedWeights, trained_weights
from palm.engine.training.finite import check_finite
from palm.engine.training.loop import Training
from palm.paradigm import Head

FORMAT, VERSION = "palm-weights", 1
CONTENTS, TENSORS = "weights.json", "model.safetensors"

ALL_HEADS = "heads"
"""What `reset` calls the heads of all tasks."""


def save_weights(training: Training, folder: Path) -> None:
    """Write a run's weights, averaged ones where it keeps averages.

    Args:
        training: between two steps.
        folder: appears whole or not at all; of several ranks, which must all call this, rank 0 writes it.

    Raises:
        TrainingError: a tensor holds what is no finite number; nothing was saved.
        StorageError: the place cannot be written.
    """
    with training.averaged():
        own = training.model.state_dict()
        check_finite(own, f"weights at global step {training.step}")
        tensors = full_tensors(own)
    if is_first():
        write_weights(folder, TrainedWeights.of(tensors, training.model.head_places))


def write_weights(folder: Path, weights: TrainedWeights) -> None:
    """Write the weights of an encoder and of heads; `folder` is as for `save_weights`."""
    move_foreign_aside(folder)
    places = {task: f"heads.@{number}" for number, task in enumerate(weights.heads)}
    tensors = {f"backbone.{name}": value for name, value in weights.backbone.items()}
    for task, head in weights.heads.items():
        # Heads that tasks share are written once for each, and may so be parted later.
        tensors |= {f"{places[task]}.{name}": value.clone() for name, value in head.items()}
    with new_directory(folder, overwrite=True) as part:
        save_tensors(part / TENSORS, tensors)
        write_json(part / CONTENTS, {"format": FORMAT, "version": VERSION, "heads": places})


def saved_weights(path: Path) -> TrainedWeights:
    """The weights that a folder holds: a checkpoint, the weights of a stage, or a task's model.

    Args:
        path: the folder; or that of a task, or of a run of one task, for its best model, or else its last.

    Raises:
        StorageError: none of them, damaged, or of another version.
    """
    if (path / STATE).is_file():
        return trained_weights(path)
    if not (path / CONTENTS).is_file():
        folder = chosen_model(path)
        verify(folder, (DESCRIPTION, WEIGHTS))
        weights = load_tensors(folder / WEIGHTS)
        with wrap_read_errors(folder / DESCRIPTION):
            task = str(read_object(folder / DESCRIPTION)["task"])
        return TrainedWeights(weights_under("backbone", weights), {task: weights_under("paradigm", weights)})
    verify(path, (CONTENTS, TENSORS))
    told = read_object(path / CONTENTS)
    with wrap_read_errors(path / CONTENTS):
        if (kind := (told["format"], told["version"])) != (FORMAT, VERSION):
            raise StorageError(f"{path} holds {kind}, this palm reads {(FORMAT, VERSION)}")
        return TrainedWeights.of(load_tensors(path / TENSORS), told["heads"])


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
