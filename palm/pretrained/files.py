"""Weights from a directory, whoever wrote it: the file that is there says what it is."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from palm.errors import StorageError
from palm.pretrained import fluid

Weights = dict[str, Tensor]


def read_weights(path: str | Path) -> Weights:
    """All tensors of a model directory, or of one of its files, under the names they have there.

    Args:
        path: a directory that Hugging Face, PaddlePALM (the model's, or its `params`) or palm wrote, or
            one of its files.

    Raises:
        StorageError: nothing there is known, or a file is damaged.
    """
    path = Path(path)
    if path.is_file() and (read := READERS.get(path.name) or BY_SUFFIX.get(path.suffix)):
        return read(path)
    for folder in (path, path / "params"):
        for name, read in READERS.items():
            if (folder / name).is_file():
                return read(folder / name)
        if any((folder / name).is_file() for name in ("word_embedding", "__paddlepalm_word_embedding")):
            return fluid.read_folder(folder)
    raise StorageError(f"no weights at {path}: {_found(path)}; expected {KNOWN}")


def _read_safetensors(file: Path) -> Weights:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {file}: {error}") from error


def _read_torch(file: Path) -> Weights:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise StorageError(f"cannot read {file} as tensors alone: {error}") from error
    if not (isinstance(tensors, dict) and all(isinstance(value, Tensor) for value in tensors.values())):
        raise StorageError(f"{file} is not a plain dictionary of tensors, as `state_dict()` gives it")
    return tensors


def _read_shards(index: Path) -> Weights:
    try:
        shards: Any = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise StorageError(f"cannot read {index}: {error!r}; expected JSON with a 'weight_map'") from error
    read = _read_safetensors if index.name.startswith("model.safetensors") else _read_torch
    weights: Weights = {}
    for shard in sorted(set(shards.values())):
        weights |= read(index.parent / shard)
    return weights


def _found(path: Path) -> str:
    if not path.exists():
        return "it does not exist"
    if path.is_file():
        return "a file of a kind that palm does not know"
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"it holds {', '.join(names[:8])}{more}" if names else "it is empty"


READERS: dict[str, Callable[[Path], Weights]] = {
    "model.safetensors": _read_safetensors,
    "model.safetensors.index.json": _read_shards,
    "pytorch_model.bin": _read_torch,
    "pytorch_model.bin.index.json": _read_shards,
    fluid.ARCHIVE: fluid.read_archive,
}
"""File name -> what reads it; the first that is there is taken."""

BY_SUFFIX: dict[str, Callable[[Path], Weights]] = {".safetensors": _read_safetensors, ".bin": _read_torch}
"""End of a file's name -> what reads it, where the file itself is given."""

KNOWN = f"{', '.join(READERS)}, or PaddlePALM's params with one file per variable"
