"""Paddle Fluid's variable files: one tensor each, a short header before its raw numbers."""

from __future__ import annotations

import gzip
import io
import math
import re
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from palm.core.files.untrusted import wrap_read_errors
from palm.core.logging import logger
from palm.pretrained.formats.zips import MAX_MEMBERS, Limited, most_unpacked

ARCHIVE = "__palmmodel__"
"""PaddlePALM's packed parameters: a gzipped tar of variable files."""

MAX_LEVELS = 16
"""Levels of detail of a variable; weights have none."""

MAX_DESCRIPTION = 1024
"""Bytes of a variable's description; weights have a type and two sizes."""

_LONGEST = 63
"""Bits before the last byte of an integer; more make no 64."""

_FORM = " as a Paddle variable"
_BLOCK = 1 << 24

_DTYPES = {2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8"}
_NOT_WEIGHTS = re.compile(r"^\.|__$|@|(?:_moment[12]|_beta[12]_pow_acc|_ema)_\d+$")
"""Descriptions, counters and the optimizer's memory, which lie beside the weights."""


def read_folder(folder: Path, headers: bool = False) -> dict[str, Tensor]:
    """The weights of a folder with one file per variable, by file name.

    Args:
        folder: what Fluid's `save_persistables` wrote.
        headers: leave the numbers where they are; the tensors are on the device "meta".

    Raises:
        StorageError: a file is not a variable, or cut short.
    """
    files = {file.name: file for file in sorted(folder.iterdir()) if file.is_file()}
    found = {}
    for name in _weights_among(files, folder):
        with wrap_read_errors(files[name], _FORM), files[name].open("rb") as stream:
            found[name] = _variable(stream, files[name].stat().st_size, headers)
    return found


def read_archive(archive: Path, headers: bool = False) -> dict[str, Tensor]:
    """The weights in a `__palmmodel__` file, by member name.

    Args:
        archive: a gzipped tar of variables.
        headers: keep no numbers; the tensors are on the device "meta". The file is unpacked all the same.

    Raises:
        StorageError: it is not a gzipped tar, a member is not a variable, or it unpacks to far more than
            it weighs.
    """
    found = {}
    others = []
    with wrap_read_errors(archive), gzip.open(archive) as raw:
        # gzip does not tell how much there will be, so it is counted while it comes.
        unpacked = Limited(raw, most_unpacked(archive.stat().st_size))
        with tarfile.open(fileobj=io.BufferedReader(unpacked, 1 << 16), mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= MAX_MEMBERS:
                    raise ValueError(f"it holds more than {MAX_MEMBERS} files; it is no model")
                name = Path(member.name).name
                stream = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if _NOT_WEIGHTS.search(name):
                    others.append(name)
                elif stream is not None:
                    with wrap_read_errors(f"{archive}: {name}", _FORM):
                        found[name] = _variable(stream, member.size, headers)
        unpacked.drain()
    _weights_among([*found, *others], archive)
    return found


def _weights_among(names: Iterable[str], place: Path) -> list[str]:
    """The names of weights; how many others there are is logged."""
    names = list(names)
    weights = [name for name in names if not _NOT_WEIGHTS.search(name)]
    if left := len(names) - len(weights):
        logger.info("%s: %d entries beside the weights are not read, such as an optimizer's", place, left)
    return weights


def _variable(stream: IO[bytes], size: int, headers: bool) -> Tensor:
    """The tensor of a variable of `size` bytes."""
    dtype, shape, left = _header(stream, size)
    if math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"it claims {shape} numbers of {dtype.itemsize} bytes, and has another size")
    if headers:
        return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device="meta")
    values = np.empty(shape, dtype)
    raw = values.reshape(-1).view(np.uint8)
    for start in range(0, len(raw), _BLOCK):  # an archive's own reader makes copies of what it reads
        part = raw[start : start + _BLOCK]
        data = stream.read(len(part))
        if len(data) < len(part):
            raise ValueError("cut short")
        part[:] = np.frombuffer(data, np.uint8)
    return torch.from_numpy(values)


def _header(stream: IO[bytes], size: int) -> tuple[np.dtype[Any], list[int], int]:
    """Type and shape of a variable, and how many of its `size` bytes are left for the numbers.

    Little endian: u32 version 0; u64 number of levels of detail, per level its size in bytes (u64)
    and that many bytes; u32 version 0; i32 size of a protobuf TensorDesc; that: field 1, the type, and
    repeated field 2, the shape; the raw numbers.
    """
    version, levels = struct.unpack("<IQ", stream.read(12))
    if levels > MAX_LEVELS:
        raise ValueError(f"it claims {levels} levels of detail")
    at = 12
    for _ in range(levels):
        skipped = struct.unpack("<Q", stream.read(8))[0]
        if at + skipped > size:
            raise ValueError("cut short")
        stream.read(skipped)
        at += 8 + skipped
    tensor_version, described = struct.unpack("<Ii", stream.read(8))
    if version or tensor_version:
        raise ValueError(f"the format has version {max(version, tensor_version)}; known: 0")
    if not 0 <= described <= MAX_DESCRIPTION:
        raise ValueError(f"it claims a description of {described} bytes")
    types, shape = _described(stream.read(described))
    return np.dtype(_DTYPES[types[0]]), shape, size - at - 8 - described


def _described(message: bytes) -> tuple[list[int], list[int]]:
    """The values of a TensorDesc's fields 1 and 2, which are integers as all of its fields are."""
    found: dict[int, list[int]] = {1 << 3: [], 2 << 3: []}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag not in found:
            raise ValueError("not the description of a variable")
        value, at = _varint(message, at)
        found[tag].append(value)
    return found[1 << 3], found[2 << 3]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer that begins at a place, seven bits a byte from the lowest on, and where it ends."""
    value = shift = 0
    while at < len(data) and data[at] & 0x80 and shift < _LONGEST:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
    if at >= len(data) or data[at] & 0x80:
        raise ValueError("cut short")
    return value | data[at] << shift, at + 1
