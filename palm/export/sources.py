"""The models to export, a saved one or all tasks of a checkpoint, and descriptions of their components."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palm.backbone import BACKBONES
from palm.core.component import Component
from palm.core.errors import PalmError, StorageError
from palm.core.registry import Registry
from palm.export.tokenizer_files import load_tokenizer
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_model, models_in
from palm.reader import READERS
from palm.train.checkpoint import newest_checkpoint
from palm.train.model_paths import LAST, STATE


def saved_model(folder: Path, trust: str | Sequence[str] = ()) -> InferenceModel:
    """Load the saved model of a task, on the CPU and in float32; `trust` is as for `load_model`.

    Raises:
        StorageError: `folder` is not a complete model; for the folder of a run, with those of its models.
    """
    if _is_checkpoint(folder) or _targets(folder):
        place = folder.parent if _is_checkpoint(folder) else folder
        models = " or ".join(map(str, _targets(place)[:3])) or "<save_path>/<task>/infer_model"
        raise StorageError(
            f"{folder} contains several tasks; export {models}, or all of them as one ONNX graph with "
            "--all_heads"
        )
    return load_model(folder, precision="fp32", trust=trust)


def tasks_of_run(folder: Path, trust: str | Sequence[str] = ()) -> list[InferenceModel]:
    """Load all tasks of a checkpoint; `trust` is as for `load_model`.

    Raises:
        StorageError: there is no checkpoint.
        PalmError: the tasks have different vocabularies, or different task embeddings.
    """
    if not _is_checkpoint(folder):
        newest = newest_checkpoint(folder)
        remedy = "train with save_every_n_steps to save one" if newest is None else f"give {newest}"
        raise StorageError(f"{folder} is not a checkpoint, which has all heads on one encoder; {remedy}")
    first, *others = models = models_in(folder, trust)
    for other in others:
        check_alike(first, other)
    return models


def parts_of(model: InferenceModel) -> dict[str, dict[str, Any]]:
    """Describe a model's components: its kind -> registry name and settings."""
    parts: dict[str, tuple[Registry[Any], Component]] = {
        "backbone": (BACKBONES, model.backbone),
        "paradigm": (HEADS, model.head),
        "reader": (READERS, model.reader),
    }
    return {
        kind: {"name": registry.name_of(type(part)), "settings": dict(part.settings)}
        for kind, (registry, part) in parts.items()
    }


def check_alike(first: InferenceModel, other: InferenceModel) -> None:
    """Check that two tasks tokenize texts in the same way, because one encoder reads one token sequence."""
    library, theirs = (load_tokenizer(model.reader).to_library() for model in (first, other))
    if library.to_str() != theirs.to_str():
        raise PalmError(
            f"{first.task!r} and {other.task!r} tokenize texts differently (vocab_path, do_lower_case), so "
            "they cannot share a graph; export them one by one"
        )
    numbers = [model.reader.settings.get("task_id", 0) for model in (first, other)]
    if "task_ids" in first.backbone.inputs_attr and numbers[0] != numbers[1]:
        raise PalmError(
            f"{first.task!r} and {other.task!r} have different task_id, {numbers[0]} and {numbers[1]}, so "
            "they cannot share an encoder's outputs; export them one by one"
        )


def _targets(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob(f"*/{LAST}/config.json"))


def _is_checkpoint(folder: Path) -> bool:
    return (folder / STATE).is_file()
