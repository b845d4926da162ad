"""The models to export: one that was saved, or all tasks of a run on one encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from palm.backbone import BACKBONES
from palm.core.errors import PalmError, StorageError
from palm.core.files.serialization import rebuild
from palm.core.files.tensors import load_into
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.loading import load_model
from palm.engine.inference.model_paths import LAST
from palm.engine.run.checkpoint import STATE, newest_checkpoint, trained_weights
from palm.export.tokenizer_files import load_tokenizer
from palm.paradigm import HEADS
from palm.reader import READERS


def saved_model(folder: Path, trust: str | Sequence[str] = ()) -> InferenceModel:
    """Load what a target task saved, on the CPU, in float32; `trust` as for `load_model`.

    Raises:
        StorageError: `folder` is no whole model; says what to give instead, if it is a run's.
    """
    if _is_checkpoint(folder) or _targets(folder):
        place = folder.parent if _is_checkpoint(folder) else folder
        models = " or ".join(map(str, _targets(place)[:3])) or "<save_path>/<task>/infer_model"
        raise StorageError(
            f"{folder} holds several tasks: export {models}; or all of them as one ONNX graph, "
            "with --all-heads"
        )
    return load_model(folder, precision="fp32", trust=trust)


def tasks_of_run(folder: Path, trust: str | Sequence[str] = ()) -> list[InferenceModel]:
    """Load all tasks of a checkpoint; or the targets of a run, if they were saved with equal encoders.

    `trust` is as for `load_model`.

    Raises:
        StorageError: neither is there, or the encoders are not equal.
        PalmError: the tasks have different vocabularies, or different task embeddings.
    """
    models = (_of_checkpoint if _is_checkpoint(folder) else _of_targets)(folder, trust)
    # One encoder reads one sequence of tokens: all tasks must tokenize a text alike.
    first, *others = models
    for other in others:
        library, theirs = (load_tokenizer(model.reader).to_library() for model in (first, other))
        if library.to_str() != theirs.to_str():
            raise PalmError(
                f"{first.task!r} and {other.task!r} make other tokens of the same text (vocab_path, "
                "do_lower_case), so they cannot share a graph; export them one by one"
            )
        numbers = [model.reader.settings.get("task_id", 0) for model in (first, other)]
        if "task_ids" in first.backbone.inputs_attr and numbers[0] != numbers[1]:
            raise PalmError(
                f"{first.task!r} and {other.task!r} have the task_id {numbers[0]} and {numbers[1]}, so the "
                "encoder computes something else for each; export them one by one"
            )
    return models


def _of_checkpoint(folder: Path, trust: str | Sequence[str]) -> list[InferenceModel]:
    weights = trained_weights(folder)
    components = read_object(folder / STATE).get("components")
    if components is None:
        raise StorageError(f"{folder} does not tell how its tasks are built: an earlier palm wrote it")
    with wrap_read_errors(folder / STATE):
        backbone = rebuild(BACKBONES, components["backbone"], folder, weights=weights.backbone, trust=trust)
        load_into(backbone, weights.backbone, folder)
        models = []
        for task, parts in components["tasks"].items():
            head = rebuild(HEADS, parts["paradigm"], folder, weights=weights.heads[task], trust=trust)
            load_into(head, weights.heads[task], folder)
            reader = rebuild(READERS, parts["reader"], folder, trust=trust)
            models.append(InferenceModel(task, reader, backbone, head, precision="fp32"))
        return models


def _of_targets(folder: Path, trust: str | Sequence[str]) -> list[InferenceModel]:
    folders = _targets(folder)
    if not folders:
        raise StorageError(
            f"{folder} is neither a checkpoint (step_N) nor the save_path of a run with saved models"
        )
    models = [saved_model(target, trust) for target in folders]
    first, *others = models
    for other in others:
        ours = first.backbone.state_dict()
        theirs = other.backbone.state_dict()
        if ours.keys() != theirs.keys() or not all(torch.equal(ours[name], theirs[name]) for name in ours):
            checkpoint = newest_checkpoint(folder)
            instead = (
                f"export a checkpoint, where all heads sit on one encoder: {checkpoint}"
                if checkpoint
                else "train with save_every_n_steps, and export a checkpoint, where all sit on one encoder"
            )
            raise StorageError(
                f"{folder}: the models of {first.task!r} and {other.task!r} have different encoders, since "
                f"every target is saved at the moment it finishes; {instead}"
            )
        other.backbone = first.backbone
    return models


def _targets(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob(f"*/{LAST}/config.json"))


def _is_checkpoint(folder: Path) -> bool:
    return (folder / STATE).is_file()
