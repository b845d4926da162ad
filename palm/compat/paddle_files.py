"""Files of Paddle and Paddle Fluid, read without Paddle; `palm.pretrained.directory` names these readers."""

from __future__ import annotations

import gzip
import math
import mmap
import pickle
import re
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from palm.core.io import wrap_read_errors
from palm.core.logging import logger

# ---- Paddle's `.pdparams`: a pickle of numpy arrays ----

NAMES_KEY = "StructuredToParameterName@@"
PARTS_KEY = "UnpackBigParamInfor@@"
"""Paddle's own entries: other names of the arrays, and large arrays that were split into parts."""

_ARRAY_TYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "b1"}


def read_pdparams(file: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the arrays of a file written by `paddle.save(layer.state_dict(), file)`, by name.

    Args:
        file: the file.
        headers: return tensors on the device "meta"; the values are read anyway, as part of the pickle.

    Raises:
        StorageError: if it is not such a file, contains anything besides arrays, or asks for a function to be
            called.
    """
    with wrap_read_errors(file, " as Paddle's arrays"), file.open("rb") as stream:
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            content = _ArrayUnpickler(mapped, encoding="latin1").load()  # Python 2 wrote bytes as text
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it contains a {type(content).__name__}, not arrays by name")
        content.pop(NAMES_KEY, None)
        parts = content.pop(PARTS_KEY, {})
        # One by one, so only a single array is in memory twice.
        tensors = {name: _tensor(name, content.pop(name)) for name in list(content)}
        for name, cut in parts.items():
            pieces = [tensors.pop(piece) for piece in cut["slices"]]
            tensors[name] = torch.cat(pieces).reshape(cut["OriginShape"])
        return {name: value.to("meta") for name, value in tensors.items()} if headers else tensors


def _tensor(name: object, value: Any) -> Tensor:
    """Convert an entry to a tensor; in some versions a parameter is (its name, its array)."""
    array = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    if not (isinstance(name, str) and isinstance(array, _Array)):
        raise pickle.UnpicklingError(f"{name!r} is not an array")
    if array.values.dtype.str[1:] == "u2":  # Paddle's bfloat16, which numpy lacks
        return torch.from_numpy(array.values.astype("<u2")).view(torch.bfloat16)
    return torch.from_numpy(array.values.astype(array.values.dtype.newbyteorder("=")))


class _Type:
    """Stand-in for `numpy.dtype`: its code and, set later, its byte order."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in _ARRAY_TYPES:
            raise pickle.UnpicklingError(f"arrays of type {code!r} are not numeric")
        self.code = code
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


class _Array:
    """Stand-in for numpy's arrays, which pickles create empty and fill later."""

    values: np.ndarray[Any, Any]

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        raw = data.encode("latin1") if isinstance(data, str) else data
        flat = np.frombuffer(raw, dtype=np.dtype(kind.order + kind.code))
        self.values = flat.reshape(shape, order="F" if is_fortran else "C")


def _encode(text: str, _encoding: object) -> bytes:
    """Stand-in for `_codecs.encode`, with which old protocols write bytes."""
    return text.encode("latin1")


def _build(reader: Any) -> None:
    state = reader.stack.pop()
    reader.stack[-1].__setstate__(state)  # only the stand-ins have a state


_KNOWN: dict[str, object] = {
    "collections.OrderedDict": dict,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": object(),
    "numpy.dtype": _Type,
    "_codecs.encode": _encode,
}
"""Name that a file of arrays may refer to -> its stand-in."""

_OPERATIONS = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: _build}
del _OPERATIONS[pickle.BYTEARRAY8[0]]  # it is allocated before it is read, and no array needs it


class _ArrayUnpickler(pickle._Unpickler):
    """Python's own unpickler, which finds only the names that arrays need.

    The one written in Python, because that in C allocates memory for any number in the file.
    """

    dispatch = _OPERATIONS

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no array needs; it may be harmful and was not run"
            )
        return _KNOWN[f"{module}.{name}"]


# ---- Fluid's variables: one tensor in a file, a short header before its raw values ----

MAX_RATIO = 1100
"""A byte of gzip's format can stand for at most 1032 bytes."""

_VARIABLE = " as a Paddle variable"
_BLOCK = 1 << 24
_TYPES = {2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8"}
_NOT_WEIGHTS = re.compile(r"^\.|__$|@|(?:_moment[12]|_beta[12]_pow_acc|_ema)_\d+$")
"""Descriptions, counters and optimizer states, which are stored beside the weights."""


def read_variables(file: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the weights of a folder that was written by Fluid's `save_persistables`, by file name.

    Args:
        file: one of the folder's files.
        headers: do not read the values; the tensors are on the device "meta".

    Raises:
        StorageError: if a file is not a variable, or is truncated.
    """
    files = {other.name: other for other in sorted(file.parent.iterdir()) if other.is_file()}
    found = {}
    for name in _weights_among(files, file.parent):
        with wrap_read_errors(files[name], _VARIABLE), files[name].open("rb") as stream:
            found[name] = _variable(stream, files[name].stat().st_size, headers)
    return found


def read_archive(archive: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the weights in a `__palmmodel__` file, a gzipped tar of variables, by member name.

    Args:
        archive: the file.
        headers: do not keep the values; the tensors are on the device "meta". The file is unpacked anyway.

    Raises:
        StorageError: if it is not a gzipped tar, or if a member is not a variable.
    """
    found = {}
    others = []
    largest = MAX_RATIO * archive.stat().st_size
    with wrap_read_errors(archive), gzip.open(archive) as raw:
        with tarfile.open(fileobj=raw, mode="r|") as tar:
            for member in tar:
                name = Path(member.name).name
                if _NOT_WEIGHTS.search(name):
                    others.append(name)
                elif member.isreg() and (stream := tar.extractfile(member)) is not None:
                    with wrap_read_errors(f"{archive}: {name}", _VARIABLE):
                        if member.size > largest:
                            raise ValueError(f"it claims {member.size} bytes, more than the archive can hold")
                        found[name] = _variable(stream, member.size, headers)
        while raw.read(_BLOCK):  # to the end, where gzip verifies its checksum
            pass
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
    """Read the tensor of a variable of `size` bytes.

    Little endian: u32 version 0; u64 number of levels of detail, per level its size in bytes (u64)
    and that many bytes; u32 version 0; i32 size of a protobuf TensorDesc; the TensorDesc with field 1, the
    type, and repeated field 2, the shape; the raw values.
    """
    _, levels = struct.unpack("<IQ", stream.read(12))
    left = size - 20
    for _ in range(levels):
        (length,) = struct.unpack("<Q", stream.read(8))
        left -= 8 + len(stream.read(min(length, size)))
    version, described = struct.unpack("<Ii", stream.read(8))
    if version or not 0 <= described <= left:
        raise ValueError(f"its header has version {version} and a description of {described} bytes")
    types, shape = _parse_description(stream.read(described))
    dtype = np.dtype(_TYPES[types[0]])
    if math.prod(shape) * dtype.itemsize != left - described:
        raise ValueError(f"it claims {shape} values of {dtype.itemsize} bytes, but has another size")
    if headers:
        return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device="meta")
    return torch.from_numpy(_values(stream, shape, dtype))


def _values(stream: IO[bytes], shape: list[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    values = np.empty(shape, dtype)
    raw = values.reshape(-1).view(np.uint8)
    for start in range(0, len(raw), _BLOCK):  # in blocks, because the reader of an archive copies its data
        part = raw[start : start + _BLOCK]
        data = stream.read(len(part))
        if len(data) < len(part):
            raise ValueError("it is truncated")
        part[:] = np.frombuffer(data, np.uint8)
    return values


def _parse_description(message: bytes) -> tuple[list[int], list[int]]:
    """Parse fields 1 and 2 of a TensorDesc; all of its fields are integers."""
    found: dict[int, list[int]] = {1 << 3: [], 2 << 3: []}
    rest = iter(message)
    for tag in rest:
        if tag not in found:
            raise ValueError("its header is not the description of a variable")
        value = shift = 0
        for byte in rest:  # seven bits each, lowest first; the last one is below 128
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found[tag].append(value)
    return found[1 << 3], found[2 << 3]
