"""Paddle Fluid's variable files: one tensor each, a short header before its raw numbers."""

from __future__ import annotations

import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import StorageError
from palm.core.logging import logger
from palm.pretrained.formats.protobuf import fields

ARCHIVE = "__palmmodel__"
"""PaddlePALM's packed parameters: a gzipped tar of variable files."""

_DTYPES = {2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8"}
_NOT_WEIGHTS = re.compile(r"^\.|__$|@|(?:_moment[12]|_beta[12]_pow_acc|_ema)_\d+$")
"""Descriptions, counters and the optimizer's memory, which lie beside the weights."""


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder with one file per variable, by file name.

    Raises:
        StorageError: a file is not a variable, or cut short.
    """
    files = {file.name: file for file in sorted(folder.iterdir()) if file.is_file()}
    names = weights_among(files, _NOT_WEIGHTS, folder)
    return {name: parse_variable(files[name].read_bytes(), str(files[name])) for name in names}


def read_archive(archive: Path) -> dict[str, Tensor]:
    """The weights in a `__palmmodel__` file, by member name.

    Raises:
        StorageError: it is not a gzipped tar, or a member is not a variable.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = dict(_members(tar))
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise StorageError(f"cannot read {archive}: {error}") from error
    names = weights_among(members, _NOT_WEIGHTS, archive)
    return {name: parse_variable(members[name], f"{archive}: {name}") for name in names}


def weights_among(names: Iterable[str], others: re.Pattern[str], place: Path) -> list[str]:
    """The names that are not among `others`; how many those are is logged."""
    names = list(names)
    weights = [name for name in names if not others.search(name)]
    if left := len(names) - len(weights):
        logger.info("%s: %d entries beside the weights are not read, such as an optimizer's", place, left)
    return weights


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        file = tar.extractfile(member) if member.isfile() else None
        if file is not None:
            yield Path(member.name).name, file.read()


def parse_variable(data: bytes, place: str) -> Tensor:
    """The tensor of one variable file.

    Little endian: u32 version 0; u64 number of levels of detail, per level its size in bytes (u64)
    and that many bytes; u32 version 0; i32 size of a protobuf TensorDesc; that; the raw numbers.

    Args:
        data: the whole file.
        place: what to call it in an error.

    Raises:
        StorageError: it is something else, or cut short.
    """
    try:
        version, levels = struct.unpack_from("<IQ", data)
        at = 12
        for _ in range(levels):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        tensor_version, described = struct.unpack_from("<Ii", data, at)
        at += 8
        dtype, shape = _description(data[at : at + described])
        values = np.frombuffer(data, dtype, int(np.prod(shape)), at + described).reshape(shape)
    except (struct.error, ValueError, KeyError, IndexError, OverflowError) as error:
        raise StorageError(f"{place} is not a Paddle variable, or cut short ({error})") from error
    if version or tensor_version:
        raise StorageError(f"{place}: Paddle's variable format {max(version, tensor_version)}; known: 0")
    return torch.from_numpy(values.copy())


def _description(message: bytes) -> tuple[str, list[int]]:
    """Dtype and shape of a TensorDesc: field 1, the type, and repeated field 2."""
    values: dict[int, list[int]] = {1: [], 2: []}
    for number, value in fields(message):
        values[number].append(int(value))
    return _DTYPES[values[1][0]], values[2]
