"""PyTorch's `.bin`: a pickle of tensors with the locations of their values in the file.

It is not read by `torch.load(weights_only=True, mmap=True)`, which runs no code either, but has no time limit
(a key of nested tuples, 200 bytes: still running after 40 s) and verifies no checksum (a flipped bit of a
weight is not noticed).

Source: `torch/serialization.py`; a zip file since torch 1.6, before that pickles followed by the values.
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
from palm.pretrained.formats.zips import open_zip

MAX_PICKLE = 1 << 24
"""Bytes of the pickle in a zip file, 16 MiB: some 50,000 tensors."""

MAX_SHARING = 4
"""Maximum total size of all tensors, in multiples of the file's size; tensors may share their values."""

MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of files before torch 1.6."""

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
    """A one-dimensional block of values in the file."""

    dtype: torch.dtype
    key: str
    count: int


@dataclass(frozen=True)
class _View:
    """A tensor as a strided view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = [self.offset, *self.shape, *self.strides]
        if len(self.shape) != len(self.strides) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a tensor has an invalid shape")
        # Strides come from the file: without this check a tensor could read memory outside its storage.
        size = math.prod(self.shape)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if size > self.storage.count or (size and last >= self.storage.count):
            raise ValueError(f"a tensor of shape {list(self.shape)} has only {self.storage.count} values")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize


Views = dict[str, _View]
Values = Callable[[_Storage], Tensor]
"""A storage -> its values, one-dimensional."""


def read_torch(file: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a file written by `torch.save(model.state_dict(), file)`, by name.

    Args:
        file: a file of any version of torch since 0.4.
        headers: do not read the values; the tensors are on the device "meta".

    Raises:
        StorageError: if it is not such a file, is damaged, contains anything besides tensors, or asks for a
            function to be called.
    """
    with wrap_read_errors(file, " as a dictionary of tensors"):
        if zipfile.is_zipfile(file):
            return _read_zip(file, headers)
        # The format before torch 1.6: consecutive pickles, then the values of every storage.
        with file.open("rb") as opened:
            stream = Stream(opened, file.stat().st_size)
            magic, _, system = (load_pickle(stream, COMMON) for _ in range(3))
            if magic != MAGIC or not system["little_endian"]:
                raise ValueError("it is not a file of torch, or it is big-endian")
            views = _views(load_pickle(stream, _KNOWN, _stored), file)
            storages = {view.storage.key: view.storage for view in views.values()}
            found: dict[str, Tensor] = {}
            # In the order of the values in the file, which is not that of the tensors.
            for key in [] if headers else load_pickle(stream, COMMON):
                count = int.from_bytes(stream.read(8), "little")
                if key not in storages or count != storages[key].count:
                    raise ValueError("its storages do not match their declarations")
                dtype = storages[key].dtype
                found[key] = _from_bytes(bytearray(stream.read(count * dtype.itemsize)), dtype)
            return _tensors(views, lambda storage: found[storage.key], headers)


def _read_zip(file: Path, headers: bool) -> dict[str, Tensor]:
    with open_zip(file) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise ValueError("its entries are compressed, which torch never does")
        if entries["data.pkl"].file_size > MAX_PICKLE:
            raise ValueError(f"its pickle has more than {MAX_PICKLE} bytes")
        if "byteorder" in entries and bytes(_read_entry(file, entries["byteorder"])) != b"little":
            raise ValueError("it is big-endian")
        program = bytes(_read_entry(file, entries["data.pkl"]))
        views = _views(load_pickle(Stream(io.BytesIO(program), len(program)), _KNOWN, _stored), file)

        def values(storage: _Storage) -> Tensor:
            entry = entries[f"data/{storage.key}"]
            if entry.file_size != storage.count * storage.dtype.itemsize:
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes, not those of its tensor")
            return _from_bytes(_read_entry(file, entry), storage.dtype)

        return _tensors(views, values, headers)


def _from_bytes(data: Any, dtype: torch.dtype) -> Tensor:
    """View writable bytes as values."""
    return torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)


def _read_entry(file: Path, entry: zipfile.ZipInfo) -> Any:
    """Read the bytes of an uncompressed entry and verify its checksum."""
    with file.open("rb") as stream:
        # The local header may be longer than that in the table of contents; its own lengths apply.
        stream.seek(entry.header_offset + 26)
        name, more = struct.unpack("<HH", stream.read(4))
        stream.seek(name + more, 1)
        data = np.fromfile(stream, np.uint8, entry.file_size)
    # torch writes 0 if checksums are switched off (`set_crc32_options`).
    if len(data) < entry.file_size or (entry.CRC and zlib.crc32(data.data) != entry.CRC):
        raise ValueError(f"{entry.filename} does not match its checksum")
    return data


def _views(content: object, file: Path) -> Views:
    if not (isinstance(content, dict) and all(isinstance(value, _View) for value in content.values())):
        raise StorageError(f"{file} is not a plain dictionary of tensors, as returned by `state_dict()`")
    # Views are free until they are copied; then a file of 1 kB could require all memory.
    if sum(view.nbytes for view in content.values()) > MAX_SHARING * file.stat().st_size:
        raise ValueError("its tensors have far more values than the file")
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
    """Convert ('storage', type, name, device, count), in old files with a view, to a storage."""
    kind, dtype, key, _, count, *view = entry
    if (
        kind != "storage"
        or not isinstance(dtype, torch.dtype)
        or type(key) is not str
        or type(count) is not int
    ):
        raise pickle.UnpicklingError("it contains a reference that is not a storage")
    if any(part is not None for part in view) or count < 0:
        raise pickle.UnpicklingError("it contains views of storages, which torch no longer supports")
    return _Storage(dtype, key, count)


def _rebuild_tensor(storage: object, offset: Any, shape: Any, strides: Any, *_: object) -> _View:
    """Replace `torch._utils._rebuild_tensor_v2` and its predecessor with fewer arguments."""
    if not (isinstance(storage, _Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise pickle.UnpicklingError("a tensor has no valid storage, shape or strides")
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
"""Name that a file of tensors may refer to -> its replacement."""
