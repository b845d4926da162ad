"""Inspection of a directory, from its descriptions and the headers of its weights.

Functions import what needs torch, because a run is described without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palm.config.files import ADAPTER_CONFIG
from palm.core.component import path_problems, raise_any
from palm.core.errors import StorageError
from palm.core.io import is_sealed, read_object, verify, wrap_read_errors
from palm.report.run import read_run
from palm.train import model_paths
from palm.train.callbacks import HISTORY_FILE
from palm.train.model_paths import CHECKPOINT, CHECKPOINT_FORMAT, RAW, STATE, description_of

if TYPE_CHECKING:
    from torch import Tensor

Facts = dict[str, Any]
"""Facts about a directory, JSON-ready: `format` first."""


def inspect_directory(path: str | Path) -> Facts:
    """Describe the content of a directory; only the headers of weights are read, if their format allows it.

    Args:
        path: a saved model, a checkpoint, the `save_path` of a run, an exported directory, or pretrained
            weights in any layout that `palm.load_backbone` reads.

    Raises:
        StorageError: it is none of these; with a list of what it contains.
    """
    raise_any(path_problems(path=path))
    folder = Path(path)
    if not folder.exists():
        raise StorageError(f"there is no directory {folder}")
    if is_sealed(folder):
        verify(folder)
    with wrap_read_errors(folder):
        finders = (_exported, _checkpoint, _model, _run, _pretrained)
        facts = next(facts for find in finders if (facts := find(folder)))
        return {**facts, "files": _files(folder)}


def _files(folder: Path) -> Facts:
    """Count files and their bytes; a run that goes on may remove some meanwhile."""
    sizes = []
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append((Path(place) / name).stat().st_size)
    sizes = sizes or [folder.stat().st_size]
    return {"number": len(sizes), "bytes": sum(sizes)}


def _description(file: Path, kind: str) -> Mapping[str, Any] | None:
    """Read a description of this format; None if it has another, or does not exist."""
    description = read_object(file) if file.is_file() else {}
    return description if description.get("format") == kind else None


def _exported(folder: Path) -> Facts | None:
    found = _description(folder / model_paths.EXPORT, model_paths.EXPORT_FORMAT)
    if found is None:
        return None
    facts = {name: found[name] for name in found.keys() - {"format", "version", "palm_version", "to"}}
    if found["to"] == "hf":
        from palm.pretrained.directory import read_weights

        facts["parameters"] = _parameters(read_weights(folder, headers=True))
    title = f"{found['format']} to {found['to']}, version {found['version']}"
    return {"format": title, "versions": {"palm": found["palm_version"]}, **facts}


def _model(folder: Path) -> Facts | None:
    description = _description(folder / model_paths.DESCRIPTION, model_paths.FORMAT)
    if description is None:
        return None
    saved = description_of(folder)["tasks"]
    tasks = {task: _task(parts, folder) for task, parts in saved.items()}
    heads = {task: parts["head"] for task, parts in saved.items()}
    task, is_single = next(iter(tasks)), len(tasks) == 1
    return {
        "format": f"{description['format']}, version {description['version']}",
        **({"task": task} if is_single else {}),
        "backbone": _component(description["backbone"]),
        "parameters": _parameters_by_part(folder, {"paradigm": heads[task]} if is_single else heads),
        **_adapters(folder),
        **(tasks[task] if is_single else {"tasks": tasks}),
        "versions": {"palm": description["palm_version"]},
    }


def _adapters(folder: Path) -> Facts:
    """Describe the adapters of a model, merged or not."""
    files = (folder / ADAPTER_CONFIG, folder / model_paths.ADAPTERS / ADAPTER_CONFIG)
    config = next((read_object(file) for file in files if file.is_file()), None)
    if config is None:
        return {}
    names = {"rank": "r", "alpha": "lora_alpha", "base": "base_model_name_or_path"}
    found = {name: config[theirs] for name, theirs in names.items()}
    return {"lora": {**found, "layers": len(config["target_modules"])}}


def _checkpoint(folder: Path) -> Facts | None:
    state = _description(folder / STATE, CHECKPOINT_FORMAT)
    if state is None:
        return None
    description = description_of(folder)
    saved = description["tasks"]
    return {
        "format": f"{state['format']}, version {state['version']}",
        "step": state["step"],
        "backbone": _component(description["backbone"]),
        "parameters": _parameters_by_part(folder, {task: parts["head"] for task, parts in saved.items()}),
        "averages": (folder / RAW).is_file(),
        "tasks": {
            task: {
                "step": step,
                "target": state["run"]["tasks"][task]["is_target"],
                **_task(saved[task], folder),
            }
            for task, step in state["task_steps"].items()
        },
    }


def _run(folder: Path) -> Facts | None:
    if not (folder / HISTORY_FILE).is_file():
        return None
    run = read_run(folder)
    models: dict[str, list[str]] = {}
    for model in run.models:
        place = model.folder.relative_to(folder).as_posix()
        if place not in models.setdefault(model.kind, []):  # a model of several tasks
            models[model.kind].append(place)
    return {
        "format": "palm run",
        "state": "not ended" if run.history.end is None else run.history.end.reason,
        "step": run.history.last_step,
        "models": models,
        "checkpoints": [f"{CHECKPOINT}{step}" for step in run.checkpoints],
    }


def _pretrained(folder: Path) -> Facts:
    from palm.pretrained.directory import read_config, read_directory

    directory = read_directory(folder, headers=True)
    config = read_config(directory.config_file)
    library = config.get("transformers_version")
    given = directory.given
    return {
        "format": given.layout,
        "architecture": config.get("architectures", [directory.backbone])[0],
        "backbone": _component({"name": directory.backbone, "settings": directory.settings}),
        "parameters": _parameters(given.weights),
        "left out": sorted(given.left_out),
        "unknown": sorted(given.unused),
        "labels": list(config.get("id2label", {}).values()),
        "vocabulary": _vocabulary(directory.vocab_path, directory.do_lower_case),
        "versions": {} if library is None else {"transformers": library},
    }


def _task(parts: Mapping[str, Any], folder: Path) -> Facts:
    """Describe reader, head, labels and vocabulary of a task."""
    from palm.core.saved import file_settings
    from palm.reader.labels import Labels

    settings = file_settings(parts["reader"]["settings"], folder)
    label_map = settings.get("label_map")
    labels = Labels(None, label_map).names if label_map is not None else {}
    return {
        "reader": _component(parts["reader"]),
        "paradigm": _component(parts["paradigm"]),
        "labels": [labels[number] for number in sorted(labels)],
        "vocabulary": _vocabulary(settings["vocab_path"], bool(settings.get("do_lower_case"))),
    }


def _component(saved: Mapping[str, Any]) -> Facts:
    """Describe a component by its name and settings, without files, which are described elsewhere."""
    settings = {
        name: value
        for name, value in saved.get("settings", {}).items()
        if name not in ("vocab_path", "label_map", "encoder_config_path")
    }
    return {"name": saved.get("name"), **settings}


def _parameters_by_part(folder: Path, heads: Mapping[str, str]) -> Facts:
    """Describe the parameters of the encoder and of every head; `heads` are prefixes of weights' names."""
    from palm.core.saved import weights_under
    from palm.pretrained.directory import read_weights

    found = {
        name: value
        for file in (model_paths.WEIGHTS, model_paths.HEAD_WEIGHTS)
        if (folder / file).is_file()
        for name, value in read_weights(folder / file, headers=True).items()
    }
    places = {"backbone": "backbone", **heads}
    return {part: _parameters(weights_under(place, found)) for part, place in places.items()}


def _parameters(weights: Mapping[str, Tensor]) -> Facts:
    dtypes = sorted({str(value.dtype).removeprefix("torch.") for value in weights.values()})
    number = sum(value.numel() for value in weights.values())
    return {"number": number, "tensors": len(weights), "dtype": ", ".join(dtypes)}


def _vocabulary(file: Path | None, do_lower_case: bool) -> Facts | None:
    if file is None:
        return None
    from palm.reader.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(file, do_lower_case)
    return {"file": file.name, "tokens": tokenizer.vocab_size, "lower case": tokenizer.is_lower_case}
