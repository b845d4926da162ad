"""Rows in a folder: one file an array, written a part at a time, mapped into memory when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from palm.core.errors import PalmError, StorageError
from palm.core.files.checksum import checksum
from palm.core.files.untrusted import parse_json, wrap_read_errors
from palm.reader.rows.rows import ArrayInfo, Column, Ints, Rows, digest_of

MANIFEST = "rows.json"

ColumnInfo = dict[str, ArrayInfo | None]
"""The descriptions of a column's `values` and `offsets`."""


class _ArrayFile:
    """One array on its way to the disk."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype
        self._hash = hashlib.blake2b()
        self.count = 0

    def append(self, array: Ints) -> None:
        part = np.ascontiguousarray(array).data
        self._hash.update(part)
        self._file.write(part)
        self.count += len(array)

    @property
    def info(self) -> ArrayInfo:
        return {"dtype": self._dtype.str, "count": self.count, "blake2b": self._hash.hexdigest()}


def write_arrays(folder: Path, parts: Iterable[Rows]) -> dict[str, ColumnInfo]:
    """Write rows part by part; only one part is in memory.

    Args:
        folder: an empty folder.
        parts: every part has the columns of the first.

    Returns:
        The descriptions of the written arrays, for `write_manifest`.

    Raises:
        OSError: the folder cannot be written.
        PalmError: a part has other columns, or numbers of another type.
    """
    files: dict[str, tuple[_ArrayFile, _ArrayFile | None]] = {}
    kinds: dict[str, str] = {}
    with ExitStack() as opened:

        def array_file(name: str, array: Ints) -> _ArrayFile:
            return _ArrayFile(opened.enter_context((folder / name).open("wb")), array.dtype)

        for rows in parts:
            kinds = kinds or _kinds(rows)
            if _kinds(rows) != kinds:
                raise PalmError(
                    f"the reader encodes some rows as {kinds}, others as {_kinds(rows)}; "
                    "encode should make the same columns of all examples"
                )
            for number, (name, column) in enumerate(rows.columns.items()):
                if name not in files:
                    offsets = None
                    if column.offsets is not None:
                        offsets = array_file(f"{number}.offsets", column.offsets)
                        offsets.append(column.offsets[:1])
                    files[name] = (array_file(f"{number}.values", column.values), offsets)
                values, offsets = files[name]
                if offsets is not None and column.offsets is not None:
                    offsets.append(column.offsets[1:] + values.count)
                values.append(column.values)
    return {
        name: {"values": values.info, "offsets": offsets.info if offsets else None}
        for name, (values, offsets) in files.items()
    }


def write_manifest(
    folder: Path,
    columns: Mapping[str, ColumnInfo],
    messages: Sequence[str],
    bad: tuple[Sequence[dict[str, Any]], int],
) -> None:
    """Write the description of the rows in a folder.

    Args:
        folder: the folder.
        columns: the descriptions that `write_arrays` gave.
        messages: the warnings about the rows, to be logged again.
        bad: `Rows.bad`.

    Raises:
        OSError: the folder cannot be written.
    """
    manifest = {"digest": digest_of(columns), "columns": columns, "messages": list(messages), "bad": bad}
    manifest["checksum"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _kinds(rows: Rows) -> dict[str, str]:
    """The type of every column, in words."""
    return {
        name: f"{'one' if column.offsets is None else 'many'} {column.values.dtype} a row"
        for name, column in rows.columns.items()
    }


def mapped_rows(folder: Path) -> tuple[Rows, list[str]]:
    """The rows of a folder, on the disk until they are used, and the warnings to be logged about them.

    Every file is checked against its size and hash first.

    Raises:
        StorageError: something is missing, cut short or changed.
    """
    with wrap_read_errors(folder / MANIFEST):
        manifest = parse_json((folder / MANIFEST).read_bytes())
        if manifest.pop("checksum") != digest_of(manifest):
            raise StorageError(f"{MANIFEST} differs from its checksum")
        columns = {
            name: Column(
                _mapped(folder / f"{number}.values", info["values"]),
                None if info["offsets"] is None else _mapped(folder / f"{number}.offsets", info["offsets"]),
            )
            for number, (name, info) in enumerate(manifest["columns"].items())
        }
        rows = Rows(columns, manifest["digest"])
        records, count = manifest["bad"]
        rows.bad = (list(records), int(count))
        return rows, [str(message) for message in manifest["messages"]]


def _mapped(path: Path, info: ArrayInfo) -> Ints:
    dtype = np.dtype(str(info["dtype"]))
    count = int(info["count"])
    if path.stat().st_size != count * dtype.itemsize:
        raise StorageError(f"{path.name} has {path.stat().st_size} bytes, not {count * dtype.itemsize}")
    if checksum(path, "blake2b") != info["blake2b"]:
        raise StorageError(f"{path.name} differs from its checksum")
    if count == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))
