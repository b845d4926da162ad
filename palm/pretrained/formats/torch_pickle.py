"""PyTorch's `.bin`: a pickle of tensors that says where in the file their numbers lie.

It is read here and not by `torch.load(weights_only=True, mmap=True)`, which runs no code either, but takes as
much time as a pickle likes (a key of tuples within tuples, 200 bytes: still busy after 40 s) and compares no
checksum (a flipped bit of a weight passes).

Source: `torch/serialization.py`; a zip file since torch 1.6, before it pickles and then the numbers.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import StorageError
from palm.core.files.untrusted import wrap_read_errors
from palm.pretrained.formats.pickles import COMMON, Stream, load_pickle
from palm.pretrained.formats.zips import opened

MAX_PICKLE = 1 << 24
"""Bytes of the pickle in a zip file, 16 MiB: some 50,000 tensors."""

MAX_SHARING = 4
"""How many times the file's size all tensors may have together: some share their numbers."""

MAGIC = 0x1950A86A20F9469CFC6C
"""What the files of old begin with, as a pickle."""

_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


@dataclass(frozen=True)
class _Storage:
    """Numbers that lie in the file under a name."""

    dtype: torch.dtype
    key: str
    count: int


@dataclass(frozen=True)
class _View:
    """A tensor: a part of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = [self.offset, *self.shape, *self.strides]
        if len(self.shape) != len(self.strides) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a tensor has no sensible shape")
        # Strides come from the file: without this a tensor could read memory behind its numbers.
        size = math.prod(self.shape)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if size > self.storage.count or (size and last >= self.storage.count):
            raise ValueError(f"a tensor of {list(self.shape)} has only {self.storage.count} numbers")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize


Views = dict[str, _View]
Values = Callable[[_Storage], Tensor]
"""A storage -> its numbers, one-dimensional."""


def read_torch(file: Path, headers: bool = False) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(model.state_dict(), file)` wrote, by name.

    Args:
        file: of any version of torch since 0.4.
        headers: leave the numbers where they are; the tensors are on the device "meta".

    Raises:
        StorageError: it is something else, damaged, holds more than tensors, or asks for anything to be
            called.
    """
    with wrap_read_errors(file, " as tensors alone"):
        if zipfile.is_zipfile(file):
            return _read_zip(file, headers)
        # The format before torch 1.6: pickles one after another, then the numbers of every storage.
        with file.open("rb") as opened:
            stream = Stream(opened, file.stat().st_size)
            magic, _, system = (load_pickle(stream, COMMON) for _ in range(3))
            if magic != MAGIC or not system["little_endian"]:
                raise ValueError("it is no file of torch, or its numbers have their highest byte first")
            views = _views(load_pickle(stream, _KNOWN, _stored), file)
            storages = {view.storage.key: view.storage for view in views.values()}
            found: dict[str, Tensor] = {}
            # In the order in which the numbers lie in the file, which is not that of the tensors.
            for key in [] if headers else load_pickle(stream, COMMON):
                count = int.from_bytes(stream.read(8), "little")
                if key not in storages or count != storages[key].count:
                    raise ValueError("it holds other numbers than it names")
                dtype = storages[key].dtype
                found[key] = _numbers(bytearray(stream.read(count * dtype.itemsize)), dtype)
            return _tensors(views, lambda storage: found[storage.key], headers)


def _read_zip(file: Path, headers: bool) -> dict[str, Tensor]:
    with opened(file) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise ValueError("its entries are compressed, which torch never does")
        if entries["data.pkl"].file_size > MAX_PICKLE:
            raise ValueError(f"its pickle has more than {MAX_PICKLE} bytes")
        if "byteorder" in entries and bytes(_checked(file, entries["byteorder"])) != b"little":
            raise ValueError("its numbers have their highest byte first")
        program = bytes(_checked(file, entries["data.pkl"]))
        views = _views(load_pickle(Stream(io.BytesIO(program), len(program)), _KNOWN, _stored), file)

        def values(storage: _Storage) -> Tensor:
            entry = entries[f"data/{storage.key}"]
            if entry.file_size != storage.count * storage.dtype.itemsize:
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes, not those of its numbers")
            return _numbers(_checked(file, entry), storage.dtype)

        return _tensors(views, values, headers)


def _numbers(data: Any, dtype: torch.dtype) -> Tensor:
    """Bytes that may be written to, as numbers."""
    return torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)


def _checked(file: Path, entry: zipfile.ZipInfo) -> Any:
    """The bytes of an entry that is not compressed, compared with its checksum."""
    with file.open("rb") as stream:
        # The header beside the data may be longer than the table of contents says; its own lengths count.
        stream.seek(entry.header_offset + 26)
        name, more = struct.unpack("<HH", stream.read(4))
        stream.seek(name + more, 1)
        data = np.fromfile(stream, np.uint8, entry.file_size)
    # torch can be told not to compute checksums (`set_crc32_options`), and writes 0 then.
    if len(data) < entry.file_size or (entry.CRC and zlib.crc32(data.data) != entry.CRC):
        raise ValueError(f"{entry.filename} differs from its checksum")
    return data


def _views(content: object, file: Path) -> Views:
    if not (isinstance(content, dict) and all(isinstance(value, _View) for value in content.values())):
        raise StorageError(f"{file} is not a plain dictionary of tensors, as `state_dict()` gives it")
    # Views cost nothing while they are views; copied, a file of 1 kB could ask for all memory.
    if sum(view.nbytes for view in content.values()) > MAX_SHARING * file.stat().st_size:
        raise ValueError("its tensors have far more numbers than it holds")
    return content


def _tensors(views: Views, values: Values, headers: bool) -> dict[str, Tensor]:
    if headers:
        return {
            name: torch.empty(view.shape, dtype=view.storage.dtype, device="meta")
            for name, view in views.items()
        }
    storages: dict[str, Tensor] = {}
    tensors = {}
    for name, view in views.items():
        key = view.storage.key
        if key not in storages:
            storages[key] = values(view.storage)
        tensors[name] = storages[key].as_strided(view.shape, view.strides, view.offset)
    return tensors


def _stored(entry: Any) -> _Storage:
    """Return the storage that ('storage', type, name, device, count), and in old files a view, stands for."""
    kind, dtype, key, _, count, *view = entry
    if (
        kind != "storage"
        or not isinstance(dtype, torch.dtype)
        or type(key) is not str
        or type(count) is not int
    ):
        raise pickle.UnpicklingError("it refers to something else than numbers")
    if any(part is not None for part in view) or count < 0:
        raise pickle.UnpicklingError("it refers to numbers in a way that torch has given up")
    return _Storage(dtype, key, count)


def _rebuild_tensor(storage: object, offset: Any, shape: Any, strides: Any, *_: object) -> _View:
    """Stand for `torch._utils._rebuild_tensor_v2`, and for its forerunner with fewer arguments."""
    if not (isinstance(storage, _Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise pickle.UnpicklingError("a tensor is made of something else than numbers")
    return _View(storage, offset, shape, strides)


def _rebuild_parameter(data: Any, *_: object) -> Any:
    return data


_KNOWN: dict[str, object] = {
    **COMMON,
    **{f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()},
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
}
"""Every name that a file of tensors needs -> what stands for it."""
