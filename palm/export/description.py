"""`palm_export.json`: what an exported directory holds and what its outputs stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.core.component import Component
from palm.core.storage import write_json
from palm.core.version import __version__
from palm.engine.inference import InferenceModel
from palm.paradigm import HEADS, Match, Regression, SequenceLabel
from palm.reader import READERS
from palm.reader.text.labels import Labels

FILE, FORMAT, VERSION = "palm_export.json", "palm-export", 1


def describe_export(folder: Path, to: str, models: Sequence[InferenceModel], **more: Any) -> None:
    """Write `palm_export.json`.

    Args:
        folder: is there.
        to: 'hf' or 'onnx'.
        models: one a task.
        more: further facts, JSON-ready.
    """
    description = {
        "format": FORMAT,
        "version": VERSION,
        "palm_version": __version__,
        "to": to,
        **more,
        "tasks": {model.task: _task(model) for model in models},
    }
    write_json(folder / FILE, description)


def label_names(model: InferenceModel) -> list[str]:
    """What every output of a classifier stands for, in order; empty where outputs are no labels.

    A label has its name in the `label_map`; without one, its number.
    """
    head = model.head
    if isinstance(head, Regression):
        return ["value"]
    if isinstance(head, Match) and head.is_pairwise:
        return ["score"]
    label_map = model.reader.settings.get("label_map")
    names = Labels(None, label_map).names if label_map is not None else {}
    return [names.get(number, str(number)) for number in range(head.settings.get("n_classes", 0))]


def _task(model: InferenceModel) -> dict[str, Any]:
    description: dict[str, Any] = {
        "reader": {"name": READERS.name_of(type(model.reader)), "settings": _plain(model.reader)},
        "paradigm": {"name": HEADS.name_of(type(model.head)), "settings": _plain(model.head)},
    }
    if labels := label_names(model):
        description["labels"] = labels
    if isinstance(model.head, SequenceLabel) and model.head.crf is not None:
        first, last, *following = model.head.crf.weight.tolist()
        description["crf"] = {"first": first, "last": last, "following": following}
    return description


def _plain(component: Component) -> Mapping[str, Any]:
    """The settings but files, which do not go along."""
    return {name: value for name, value in component.settings.items() if not isinstance(value, Path)}
