"""TensorFlow's checkpoints: a table of names in `.index`, raw numbers in `.data-*`."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import StorageError
from palm.pretrained.formats.fluid import weights_among
from palm.pretrained.formats.protobuf import fields, varint

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "<u2", 19: "<f2"}
_BFLOAT16 = 14
_NOT_WEIGHTS = re.compile(r"/adam_[mv]$|/Adam(?:_1)?$|^_CHECKPOINTABLE_OBJECT_GRAPH$")
"""The optimizer's memory, twice as large as the weights, and a description that is no tensor."""


@dataclass
class _Entry:
    """Where a variable lies."""

    dtype: int = 0
    shape: list[int] = field(default_factory=list)
    shard: int = 0
    offset: int = 0
    size: int = 0


def read_checkpoint(index: Path) -> dict[str, Tensor]:
    """The variables of a checkpoint, by name; those of its optimizer are passed over.

    Args:
        index: `<checkpoint>.index`; the files `<checkpoint>.data-00000-of-0000N` lie beside it.

    Raises:
        StorageError: a file is missing, cut short or something else.

    Source: TensorFlow, `tensor_bundle.proto`; LevelDB, `doc/table_format.md`.
    """
    try:
        table = dict(_table(index.read_bytes()))
        shards = next((value for number, value in fields(table.pop(b"", b"")) if number == 1), 1)
        entries = {name.decode(): _entry(value) for name, value in table.items()}
        names = weights_among(entries, _NOT_WEIGHTS, index)
        return {name: _tensor(entries[name], index, int(shards)) for name in names}
    except (OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise StorageError(f"cannot read {index} as a TensorFlow checkpoint: {error}") from error


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a sorted table: an index block names the data blocks."""
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("its last bytes are not those of a table; is it cut short?")
    footer = data[-_FOOTER:]
    _, at = _handle(footer, 0)
    (start, size), _ = _handle(footer, at)
    for _, handle in _block(data, start, size):
        (start, size), _ = _handle(handle, 0)
        yield from _block(data, start, size)


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the two end."""
    start, at = varint(data, at)
    size, at = varint(data, at)
    return (start, size), at


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; each key tells only how it differs from the one before."""
    if data[start + size] != 0:
        raise ValueError("its table is compressed")
    block = data[start : start + size]
    restarts = struct.unpack("<I", block[-4:])[0]
    key, at, end = b"", 0, len(block) - 4 * (restarts + 1)
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def _entry(message: bytes) -> _Entry:
    """A BundleEntryProto."""
    entry = _Entry()
    places = {1: "dtype", 3: "shard", 4: "offset", 5: "size"}
    for number, value in fields(message):
        if number in places:
            setattr(entry, places[number], value)
        elif number == 2 and isinstance(value, bytes):
            entry.shape = [
                _size(dim) for place, dim in fields(value) if place == 2 and isinstance(dim, bytes)
            ]
    return entry


def _size(dimension: bytes) -> int:
    return next((int(value) for number, value in fields(dimension) if number == 1), 0)


def _tensor(entry: _Entry, index: Path, shards: int) -> Tensor:
    file = index.with_name(f"{index.stem}.data-{entry.shard:05d}-of-{shards:05d}")
    count = int(np.prod(entry.shape, dtype=np.int64))
    dtype = np.dtype(_DTYPES[entry.dtype])
    if count * dtype.itemsize != entry.size or file.stat().st_size < entry.offset + entry.size:
        raise ValueError(f"{file.name} is cut short")
    values = torch.from_numpy(np.fromfile(file, dtype, count, offset=entry.offset)).reshape(entry.shape)
    return values.view(torch.bfloat16) if entry.dtype == _BFLOAT16 else values
