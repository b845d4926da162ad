"""Weights from a directory in any supported format, detected by file name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import _TYPES
from torch import Tensor

from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.files.tensors import headers_in, load_tensors
from palm.core.files.untrusted import read_json, resolve_inside, wrap_read_errors
from palm.pretrained.formats import fluid
from palm.pretrained.formats.paddle_pickle import read_pdparams
from palm.pretrained.formats.torch_pickle import read_torch

Weights = dict[str, Tensor]


Read = Callable[[Path, bool], Weights]
"""Reader of one format: file, `headers` -> tensors, on the device "meta" if only headers are read."""


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
    if path.is_file() and (read := WEIGHT_READERS.get(path.name) or BY_SUFFIX.get(path.suffix)):
        return read(path, headers)
    for folder in (path, path / "params"):
        for name, read in WEIGHT_READERS.items():
            if (folder / name).is_file():
                return read(folder / name, headers)
        if any((folder / name).is_file() for name in ("word_embedding", "__paddlepalm_word_embedding")):
            return fluid.read_folder(folder, headers)
    file = _only_file(path)
    return BY_SUFFIX[file.suffix](file, headers)


def _only_file(path: Path) -> Path:
    """Find the only file of a kind without a fixed name in a folder."""
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
    raise StorageError(f"no weights at {path}: {reason}; expected {KNOWN}")


def _read_safetensors(file: Path, headers: bool) -> Weights:
    if not headers:
        return load_tensors(file)
    with wrap_read_errors(file):
        found = headers_in(file)
        return {
            name: torch.empty(shape, dtype=_TYPES.get(kind, torch.int64), device="meta")
            for name, (kind, shape) in found.items()
        }


def _read_shards(index: Path, headers: bool) -> Weights:
    with wrap_read_errors(index):
        weights: Weights = {}
        for shard in sorted(set(read_json(index)["weight_map"].values())):
            file = resolve_inside(index.parent, shard)
            weights |= BY_SUFFIX[file.suffix](file, headers)
        return weights


WEIGHT_READERS: dict[str, Read] = {
    "model.safetensors": _read_safetensors,
    "model.safetensors.index.json": _read_shards,
    "pytorch_model.bin": read_torch,
    "pytorch_model.bin.index.json": _read_shards,
    "model_state.pdparams": read_pdparams,
    "model_state.pdparams.index.json": _read_shards,
    fluid.ARCHIVE: fluid.read_archive,
}
"""File name -> its reader; the first file that exists is read."""

BY_SUFFIX: dict[str, Read] = {
    ".safetensors": _read_safetensors,
    ".bin": read_torch,
    ".pdparams": read_pdparams,
}
"""Suffix of a file name -> its reader, for files that are given directly or have no fixed name."""


KNOWN = f"{', '.join(WEIGHT_READERS)}, one .pdparams, or PaddlePALM's params with one file per variable"
