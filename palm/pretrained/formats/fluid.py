"""Paddle Fluid's variable files: one tensor each, a short header before its raw values."""

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
from palm.pretrained.formats.zips import MAX_MEMBERS, LimitedReader, max_unpacked

ARCHIVE = "__palmmodel__"
"""PaddlePALM's packed parameters: a gzipped tar of variable files."""

MAX_LEVELS = 16
"""Limit of a variable's levels of detail; weights have none."""

MAX_DESCRIPTION = 1024
"""Limit of the bytes of a variable's description; weights have a type and two sizes."""

_MAX_SHIFT = 63
"""Bits before the last byte of a 64-bit integer."""

_FORM = " as a Paddle variable"
_BLOCK = 1 << 24

_DTYPES = {2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8"}
_NOT_WEIGHTS = re.compile(r"^\.|__$|@|(?:_moment[12]|_beta[12]_pow_acc|_ema)_\d+$")
"""Descriptions, counters and optimizer states, which are stored beside the weights."""


def read_folder(folder: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the weights of a folder with one file per variable, by file name.

    Args:
        folder: a folder written by Fluid's `save_persistables`.
        headers: do not read the values; the tensors are on the device "meta".

    Raises:
        StorageError: if a file is not a variable, or is truncated.
    """
    files = {file.name: file for file in sorted(folder.iterdir()) if file.is_file()}
    found = {}
    for name in _weights_among(files, folder):
        with wrap_read_errors(files[name], _FORM), files[name].open("rb") as stream:
            found[name] = _variable(stream, files[name].stat().st_size, headers)
    return found


def read_archive(archive: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the weights in a `__palmmodel__` file, by member name.

    Args:
        archive: a gzipped tar of variables.
        headers: do not keep the values; the tensors are on the device "meta". The file is unpacked anyway.

    Raises:
        StorageError: if it is not a gzipped tar, if a member is not a variable, or if it unpacks to far more
            than its size.
    """
    found = {}
    others = []
    with wrap_read_errors(archive), gzip.open(archive) as raw:
        # gzip does not store the unpacked size, so bytes are counted while reading.
        unpacked = LimitedReader(raw, max_unpacked(archive.stat().st_size))
        with tarfile.open(fileobj=io.BufferedReader(unpacked, 1 << 16), mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= MAX_MEMBERS:
                    raise ValueError(f"it contains more than {MAX_MEMBERS} files; it is not a model")
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
    """Select the names of weights, and log the number of the others."""
    names = list(names)
    weights = [name for name in names if not _NOT_WEIGHTS.search(name)]
    if others := len(names) - len(weights):
        logger.info("%s: %d entries that are not weights are ignored, such as an optimizer's", place, others)
    return weights


def _variable(stream: IO[bytes], size: int, headers: bool) -> Tensor:
    """Read the tensor of a variable of `size` bytes."""
    dtype, shape, remaining = _header(stream, size)
    if math.prod(shape) * dtype.itemsize != remaining:
        raise ValueError(f"it claims {shape} values of {dtype.itemsize} bytes, but has another size")
    if headers:
        return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device="meta")
    values = np.empty(shape, dtype)
    raw = values.reshape(-1).view(np.uint8)
    for start in range(0, len(raw), _BLOCK):  # in blocks, because the reader of an archive copies its data
        part = raw[start : start + _BLOCK]
        data = stream.read(len(part))
        if len(data) < len(part):
            raise ValueError("it is truncated")
        part[:] = np.frombuffer(data, np.uint8)
    return torch.from_numpy(values)


def _header(stream: IO[bytes], size: int) -> tuple[np.dtype[Any], list[int], int]:
    """Read the type and shape of a variable; also return how many of its `size` bytes remain for the values.

    Little endian: u32 version 0; u64 number of levels of detail, per level its size in bytes (u64)
    and that many bytes; u32 version 0; i32 size of a protobuf TensorDesc; the TensorDesc with field 1, the
    type, and repeated field 2, the shape; the raw values.
    """
    version, levels = struct.unpack("<IQ", stream.read(12))
    if levels > MAX_LEVELS:
        raise ValueError(f"it claims {levels} levels of detail")
    at = 12
    for _ in range(levels):
        skipped = struct.unpack("<Q", stream.read(8))[0]
        if at + skipped > size:
            raise ValueError("it is truncated")
        stream.read(skipped)
        at += 8 + skipped
    tensor_version, described = struct.unpack("<Ii", stream.read(8))
    if version or tensor_version:
        raise ValueError(f"the format has version {max(version, tensor_version)}, expected 0")
    if not 0 <= described <= MAX_DESCRIPTION:
        raise ValueError(f"it claims a description of {described} bytes")
    types, shape = _parse_description(stream.read(described))
    return np.dtype(_DTYPES[types[0]]), shape, size - at - 8 - described


def _parse_description(message: bytes) -> tuple[list[int], list[int]]:
    """Parse fields 1 and 2 of a TensorDesc; all of its fields are integers."""
    found: dict[int, list[int]] = {1 << 3: [], 2 << 3: []}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag not in found:
            raise ValueError("its header is not the description of a variable")
        value, at = _varint(message, at)
        found[tag].append(value)
    return found[1 << 3], found[2 << 3]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Parse the varint at a position, seven bits per byte, lowest first; also return its end."""
    value = shift = 0
    while at < len(data) and data[at] & 0x80 and shift < _MAX_SHIFT:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
    if at >= len(data) or data[at] & 0x80:
        raise ValueError("it is truncated")
    return value | data[at] << shift, at + 1
