"""`palm_export.json`: the content of an exported directory and the meaning of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palm.core.io import write_json
from palm.core.version import __version__
from palm.export.sources import parts_of
from palm.paradigm import HEADS, SequenceLabel
from palm.predict.inference import InferenceModel
from palm.pretrained.heads import PROBLEM_TYPES
from palm.train.model_card import label_names
from palm.train.model_paths import EXPORT, EXPORT_FORMAT

VERSION = 1


def describe_export(folder: Path, to: str, models: Sequence[InferenceModel], **more: Any) -> None:
    """Write `palm_export.json`.

    Args:
        folder: an existing folder.
        to: 'hf' or 'onnx'.
        models: one per task.
        more: further facts, JSON-ready.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for model in models:
        parts = parts_of(model)
        for part in parts.values():  # files are not exported
            part["settings"] = {
                n: value for n, value in part["settings"].items() if not isinstance(value, Path)
            }
        task: dict[str, Any] = {"reader": parts["reader"], "paradigm": parts["paradigm"]}
        tasks[model.task] = task
        if labels := label_names(model.reader, model.head):
            task["labels"] = labels
        if fitted := {name: values.tolist() for name, values in model.head.named_buffers()}:
            task["fitted"] = fitted
        if isinstance(model.head, SequenceLabel) and model.head.crf is not None:
            # Scores of a text's first label, of its last, and of each label (row) followed by another.
            first, last, *following = model.head.crf.weight.tolist()
            task["crf"] = {"first": first, "last": last, "following": following}
    about = {"format": EXPORT_FORMAT, "version": VERSION, "palm_version": __version__, "to": to}
    write_json(folder / EXPORT, {**about, **more, "tasks": tasks})


def label_settings(model: InferenceModel) -> dict[str, Any]:
    """Return the settings of Hugging Face's `config.json` that follow from a task's labels and kind."""
    settings: dict[str, Any] = {}
    if labels := label_names(model.reader, model.head):
        settings["id2label"] = dict(enumerate(labels))
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem := PROBLEM_TYPES.get(HEADS.name_of(type(model.head))):
        settings["problem_type"] = problem
    return settings
