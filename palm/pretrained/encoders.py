"""A pretrained encoder from its directory alone: which one it is, how large, and its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palm.backbone import BACKBONES, BERT, ERNIE, Backbone
from palm.errors import ConfigError, StorageError
from palm.pretrained.files import read_weights
from palm.pretrained.loading import fill
from palm.pretrained.names import Renamed, to_ours

CONFIG_FILES = ("config.json", "bert_config.json", "ernie_config.json")


def load_backbone(path: str | Path) -> Backbone:
    """The encoder of a model directory, ready to compute (in `eval()` mode).

    Args:
        path: a directory that Hugging Face (BERT or ERNIE), PaddlePALM or palm wrote: weights, and a
            JSON file with the sizes beside them or, for PaddlePALM's `params`, one level up.

    Returns:
        A module that maps the inputs of its `inputs_attr`, a dictionary of tensors, to those of its
        `outputs_attr`.

    Raises:
        StorageError: files are missing or damaged, or of another kind of model.
        ConfigError: the JSON file's sizes are missing or wrong.
    """
    path = Path(path)
    given = to_ours(read_weights(path))
    config_file = _config_file(path)
    try:
        backbone = _built(_read_config(config_file), config_file, given)
    except ConfigError as error:
        raise ConfigError(f"{config_file}: {problem}" for problem in error.problems) from None
    fill(backbone, given, path)
    return backbone.eval()


def _config_file(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    for place in (folder, folder.parent):
        for name in CONFIG_FILES:
            if (place / name).is_file():
                return place / name
    raise StorageError(f"{path} has weights but none of {', '.join(CONFIG_FILES)}, which tell the sizes")


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StorageError(f"cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise StorageError(f"{file} should hold a JSON object with the encoder's settings")
    return config


def _built(config: Mapping[str, Any], file: Path, given: Renamed) -> Backbone:
    saved = config.get("backbone")
    if isinstance(saved, dict):
        return BACKBONES[saved["name"]](**saved["settings"])
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise StorageError(
            f"{file}: position_embedding_type should be 'absolute'; BERT and ERNIE have no other"
        )
    model_type = config.get("model_type", "ernie" if _is_ernie(config, file, given) else "bert")
    if model_type not in ("bert", "ernie"):
        raise StorageError(f"{file} describes a model of type {model_type!r}; known: bert, ernie")
    if model_type == "bert":
        return BERT.from_config({**config, **_told_by(given)})
    tasks = {} if {"use_task_id", "use_task_emb"} & set(config) else {"use_task_id": _has_tasks(given)}
    return ERNIE.from_config({**config, **tasks, **_told_by(given)})


def _is_ernie(config: Mapping[str, Any], file: Path, given: Renamed) -> bool:
    return file.name == "ernie_config.json" or "task_type_vocab_size" in config or _has_tasks(given)


def _has_tasks(given: Renamed) -> bool:
    return "embeddings.task.weight" in given.weights


def _told_by(given: Renamed) -> dict[str, int]:
    """The inner width as the weights have it: PaddlePALM's files may name one that it did not use."""
    inner = given.weights.get("layers.0.ffn.inner.weight")
    return {} if inner is None else {"intermediate_size": inner.shape[0]}
