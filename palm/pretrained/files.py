"""Weights from a directory, whoever wrote it: the file that is there says what it is."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from palm.core.errors import StorageError
from palm.pretrained.formats import fluid
from palm.pretrained.formats.paddle_pickle import read_pdparams
from palm.pretrained.formats.tensorflow import read_checkpoint

Weights = dict[str, Tensor]


def read_weights(path: str | Path) -> Weights:
    """All tensors of a model directory, or of one of its files, under the names they have there.

    Args:
        path: a directory that Hugging Face, Google, PaddleNLP, PaddlePALM (the model's, or its `params`) or
            palm wrote; or one of its files; or a TensorFlow checkpoint as TensorFlow names it.

    Raises:
        StorageError: nothing there is known, several files could be meant, or a file is damaged.
    """
    path = Path(path)
    if path.is_file() and (read := WEIGHT_READERS.get(path.name) or BY_SUFFIX.get(path.suffix)):
        return read(path)
    if (index := path.with_name(f"{path.name}.index")).is_file():
        return read_checkpoint(index)
    for folder in (path, path / "params"):
        for name, read in WEIGHT_READERS.items():
            if (folder / name).is_file():
                return read(folder / name)
        if any((folder / name).is_file() for name in ("word_embedding", "__paddlepalm_word_embedding")):
            return fluid.read_folder(folder)
    if file := _only_file(path):
        return BY_SUFFIX[file.suffix](file)
    raise StorageError(f"no weights at {path}: {_found(path)}; expected {KNOWN}")


def _only_file(folder: Path) -> Path | None:
    """The file of a kind that has no fixed name."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [file for file in files if file.suffix in OF_ANY_NAME]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise StorageError(f"several files in {folder} could be the weights: {names}; give one of them")
    return found[0] if found else None


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
    weights: Weights = {}
    for shard in sorted(set(shards.values())):
        weights |= BY_SUFFIX[Path(shard).suffix](index.parent / shard)
    return weights


def _read_npz(file: Path) -> Weights:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"cannot read {file} as numpy's arrays: {error}") from error


def _found(path: Path) -> str:
    if not path.exists():
        return "it does not exist"
    if path.is_file():
        return "a file of a kind that palm does not know"
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"it holds {', '.join(names[:8])}{more}" if names else "it is empty"


WEIGHT_READERS: dict[str, Callable[[Path], Weights]] = {
    "model.safetensors": _read_safetensors,
    "model.safetensors.index.json": _read_shards,
    "pytorch_model.bin": _read_torch,
    "pytorch_model.bin.index.json": _read_shards,
    "model_state.pdparams": read_pdparams,
    "model_state.pdparams.index.json": _read_shards,
    fluid.ARCHIVE: fluid.read_archive,
}
"""File name -> what reads it; the first that is there is taken."""

BY_SUFFIX: dict[str, Callable[[Path], Weights]] = {
    ".safetensors": _read_safetensors,
    ".bin": _read_torch,
    ".pdparams": read_pdparams,
    ".npz": _read_npz,
    ".index": read_checkpoint,
}
"""End of a file's name -> what reads it, where the file itself is given or its name is free."""

OF_ANY_NAME = (".pdparams", ".index", ".npz")

KNOWN = (
    f"{', '.join(WEIGHT_READERS)}, a TensorFlow checkpoint (.index and .data), one .pdparams or .npz, or "
    "PaddlePALM's params with one file per variable"
)
