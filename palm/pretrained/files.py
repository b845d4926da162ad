"""Weights from a directory in any supported format, detected by file name."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import _TYPES
from torch import Tensor

from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.io import read_json, resolve_inside, wrap_read_errors
from palm.core.saved import headers_in, load_tensors

Weights = dict[str, Tensor]

Read = Callable[[Path, bool], Weights]
"""Reader of one format: file, `headers` -> tensors, on the device "meta" if only headers are wanted."""

_HERE = "palm.pretrained.files"
_PADDLE = "palm.compat.paddle_files"

# A table of plugins: a reader is a dotted path, imported when a directory has such files. `palm.compat` is
# above this package and reads the files of Paddle, so it cannot be imported here.
WEIGHT_READERS = {
    "model.safetensors": f"{_HERE}.read_safetensors",
    "model.safetensors.index.json": f"{_HERE}.read_shards",
    "pytorch_model.bin": f"{_HERE}.read_torch",
    "pytorch_model.bin.index.json": f"{_HERE}.read_shards",
    "model_state.pdparams": f"{_PADDLE}.read_pdparams",
    "model_state.pdparams.index.json": f"{_HERE}.read_shards",
    "__palmmodel__": f"{_PADDLE}.read_archive",
    "word_embedding": f"{_PADDLE}.read_variables",
    "__paddlepalm_word_embedding": f"{_PADDLE}.read_variables",
}
"""File name -> its reader; the first file that exists in a folder, or in its `params`, is read."""

BY_SUFFIX = {
    ".safetensors": f"{_HERE}.read_safetensors",
    ".bin": f"{_HERE}.read_torch",
    ".pdparams": f"{_PADDLE}.read_pdparams",
}
"""Suffix of a file name -> its reader, for files that are given directly or have no fixed name."""


def read_weights(path: str | Path, headers: bool = False) -> Weights:
    """Read all tensors of a model directory, or of one of its files, under their names in the file.

    Args:
        path: a directory (PaddlePALM's `params` too) or a file in one.
        headers: do not read the values if the format allows it; the tensors are on the device "meta".

    Raises:
        StorageError: if no weights are found, if several files could be the weights, or if a file is damaged.
    """
    path = Path(path)
    path = path if path.name else path.absolute()
    places = (folder / name for folder in (path, path / "params") for name in WEIGHT_READERS)
    if path.is_file() and (path.name in WEIGHT_READERS or path.suffix in BY_SUFFIX):
        file = path
    else:
        file = next((place for place in places if place.is_file()), None) or _only_file(path)
    return _reader_of(file)(file, headers)


def _reader_of(file: Path) -> Read:
    module, _, function = (WEIGHT_READERS.get(file.name) or BY_SUFFIX[file.suffix]).rpartition(".")
    return cast("Read", getattr(import_module(module), function))


def _only_file(path: Path) -> Path:
    """Find the only file of Paddle's without a fixed name in a folder."""
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    found = [name for name in names if name.endswith(".pdparams")]
    if len(found) == 1:
        return path / found[0]
    if found:
        raise StorageError(
            f"several files in {path} could be the weights: {', '.join(found)}; give the path of one of them"
        )
    reason = "unknown kind of file" if path.exists() else "it does not exist"
    if path.is_dir():
        reason = f"it contains {', '.join(shortened(names, 8))}" if names else "it is empty"
    expected = ", ".join([*list(WEIGHT_READERS)[:-2], "one .pdparams", "PaddlePALM's params"])
    raise StorageError(f"no weights at {path}: {reason}; expected one of {expected}")


def read_safetensors(file: Path, headers: bool) -> Weights:
    """Read a file of safetensors; the arguments of every reader are those of `Read`."""
    if not headers:
        return load_tensors(file)
    with wrap_read_errors(file):
        found = headers_in(file)
        return {
            name: torch.empty(shape, dtype=_TYPES.get(kind, torch.int64), device="meta")
            for name, (kind, shape) in found.items()
        }


def read_torch(file: Path, headers: bool) -> Weights:
    """Read a file written by `torch.save(model.state_dict(), file)` without running its code.

    Raises:
        StorageError: if it is damaged, or contains anything besides a dictionary of tensors.
    """
    with wrap_read_errors(file, " as a dictionary of tensors"):
        if is_zip := zipfile.is_zipfile(file):  # since torch 1.6
            with zipfile.ZipFile(file) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > file.stat().st_size:
                    raise ValueError("its entries are compressed, which torch never does")
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
            raise ValueError("it is not a plain dictionary of tensors, as returned by `state_dict()`")
        return {str(name): value.to("meta") if headers else value for name, value in content.items()}


def read_shards(index: Path, headers: bool) -> Weights:
    """Read the files that an index names; they must be in its folder."""
    with wrap_read_errors(index):
        weights: Weights = {}
        for shard in sorted(set(read_json(index)["weight_map"].values())):
            file = resolve_inside(index.parent, shard)
            weights |= _reader_of(file)(file, headers)
        return weights
