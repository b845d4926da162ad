"""TensorFlow's checkpoints: a table of names in `.index`, raw numbers in `.data-*`."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palm.core.files.untrusted import read_bytes, wrap_read_errors
from palm.pretrained.formats.crc32c import masked_crc32c
from palm.pretrained.formats.fluid import weights_among
from palm.pretrained.formats.protobuf import fields, varint

MAX_INDEX = 1 << 25
"""Bytes of an index, 32 MiB."""

MAX_ENTRIES = 200_000
"""Variables in an index."""

MAX_NAME = 4096
"""Bytes of a name, all of which an entry may repeat."""

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
"""Bytes at the end of a table."""

_TRAILER = 5
"""Bytes after each block of a table: its compression, and a checksum."""

_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "<u2", 19: "<f2"}
_BFLOAT16 = 14
_NOT_WEIGHTS = re.compile(r"/adam_[mv]$|/Adam(?:_1)?$|^_CHECKPOINTABLE_OBJECT_GRAPH$")
"""The optimizer's memory, twice as large as the weights, and a description that is no tensor."""


class _Entry:
    """The place of a variable.

    Args:
        message: a BundleEntryProto.
    """

    def __init__(self, message: bytes) -> None:
        self.shape: list[int] = []
        found: dict[int, Any] = {}
        for number, value in fields(message):
            found[number] = value
            if number == 2 and isinstance(value, bytes):
                dims = [dim for place, dim in fields(value) if place == 2 and isinstance(dim, bytes)]
                self.shape = [next((int(size) for one, size in fields(dim) if one == 1), 0) for dim in dims]
        self.dtype, self.shard, self.offset, self.size = (found.get(number, 0) for number in (1, 3, 4, 5))
        self.checksum: int | None = found.get(6)

    def tensor(self, name: str, file: Path, headers: bool) -> Tensor:
        """The variable; of `headers`, without its numbers."""
        count = math.prod(self.shape)
        dtype = np.dtype(_DTYPES[self.dtype])
        if count * dtype.itemsize != self.size or file.stat().st_size < self.offset + self.size:
            raise ValueError(f"{file.name} is cut short")
        if headers:
            kind = torch.bfloat16 if self.dtype == _BFLOAT16 else torch.from_numpy(np.empty(0, dtype)).dtype
            return torch.empty(self.shape, dtype=kind, device="meta")
        numbers = np.fromfile(file, dtype, count, offset=self.offset)
        if self.checksum is not None and masked_crc32c(numbers.view(np.uint8)) != self.checksum:
            raise ValueError(f"{name} in {file.name} differs from its checksum")
        values = torch.from_numpy(numbers).reshape(self.shape)
        return values.view(torch.bfloat16) if self.dtype == _BFLOAT16 else values


def read_checkpoint(index: Path, headers: bool = False) -> dict[str, Tensor]:
    """The variables of a checkpoint, by name; those of its optimizer are passed over.

    Args:
        index: `<checkpoint>.index`; the files `<checkpoint>.data-00000-of-0000N` lie beside it.
        headers: leave the numbers where they are; the tensors are on the device "meta".

    Raises:
        StorageError: a file is missing, cut short, damaged or something else.

    Source: TensorFlow, `tensor_bundle.proto`; LevelDB, `doc/table_format.md`.
    """
    with wrap_read_errors(index, " as a TensorFlow checkpoint"):
        table = _table(read_bytes(index, MAX_INDEX))
        shards = next((value for number, value in fields(table.pop(b"", b"")) if number == 1), 1)
        entries = {name.decode(): _Entry(value) for name, value in table.items()}
        names = weights_among(entries, _NOT_WEIGHTS, index)
        left: dict[Path, int] = {}
        found = {}
        for name in names:
            entry = entries[name]
            file = index.with_name(f"{index.stem}.data-{entry.shard:05d}-of-{int(shards):05d}")
            left[file] = left.get(file, file.stat().st_size) - entry.size
            if left[file] < 0:  # so that no number is read twice, and again
                raise ValueError(f"{file.name} is cut short, or its variables overlap")
            found[name] = entry.tensor(name, file, headers)
        return found


def _table(data: bytes) -> dict[bytes, bytes]:
    """The entries of a sorted table: an index block names the data blocks."""
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("its last bytes are not those of a table; is it cut short?")
    footer = data[-_FOOTER:]
    _, at = _handle(footer, 0)
    (start, size), _ = _handle(footer, at)
    table: dict[bytes, bytes] = {}
    left = len(data)
    for _, handle in _block(data, start, size):
        (start, size), _ = _handle(handle, 0)
        left -= size + _TRAILER
        if left < 0:  # so that no block is read twice, and again
            raise ValueError("its blocks overlap")
        for name, value in _block(data, start, size):
            if len(table) >= MAX_ENTRIES:
                raise ValueError(f"it has more than {MAX_ENTRIES} variables")
            table[name] = value
    return table


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the two end."""
    start, at = varint(data, at)
    size, at = varint(data, at)
    return (start, size), at


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; each key tells only how it differs from the one before."""
    if start + size + _TRAILER > len(data):
        raise ValueError("a block of its table lies behind its end")
    if data[start + size] != 0:
        raise ValueError("its table is compressed")
    found = struct.unpack_from("<I", data, start + size + 1)[0]
    if masked_crc32c(np.frombuffer(data, np.uint8, size + 1, start)) != found:
        raise ValueError("a block of its table differs from its checksum")
    block = data[start : start + size]
    end = len(block) - 4 * (struct.unpack("<I", block[-4:])[0] + 1)
    key = b""
    at = 0
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        if shared + own > MAX_NAME or at + own + length > end:
            raise ValueError("a name in its table is cut short, or too long")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length
