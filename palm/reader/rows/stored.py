"""Rows in a folder: one file an array, written a part at a time, mapped into memory when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from palm.core.errors import PalmError, StorageError
from palm.core.files.checksum import checksum
from palm.reader.rows.rows import Column, Facts, Ints, Rows, digest_of

MANIFEST = "rows.json"


class RowsWriter:
    """Writes the rows of a file part by part; only one part is in memory. It is a context.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._columns: dict[str, tuple[_ArrayFile, _ArrayFile | None]] = {}
        self._kinds: dict[str, str] = {}

    def append(self, rows: Rows) -> None:
        """Write the next rows; every part has the columns of the first.

        Raises:
            OSError: the folder cannot be written.
            PalmError: the part has other columns, or numbers of another type.
        """
        if not self._columns:
            self._kinds = _kinds(rows)
            for number, (name, column) in enumerate(rows.columns.items()):
                values = _ArrayFile(self.folder / f"{number}.values", column.values.dtype)
                offsets = None
                if column.offsets is not None:
                    offsets = _ArrayFile(self.folder / f"{number}.offsets", column.offsets.dtype)
                    offsets.append(column.offsets[:1])
                self._columns[name] = values, offsets
        if _kinds(rows) != self._kinds:
            raise PalmError(
                f"the reader encodes some rows as {self._kinds}, others as {_kinds(rows)}; "
                "encode should make the same columns of all examples"
            )
        for name, (values, offsets) in self._columns.items():
            column = rows[name]
            if offsets is not None and column.offsets is not None:
                offsets.append(column.offsets[1:] + values.count)
            values.append(column.values)

    def finish(self, messages: Sequence[str], bad: tuple[Sequence[dict[str, Any]], int] = ((), 0)) -> None:
        """Close the files and write down what they hold.

        Args:
            messages: what was logged about the rows, to be logged again.
            bad: `Rows.bad`.

        Raises:
            OSError: the folder cannot be written.
        """
        columns = {
            name: {"values": values.close(), "offsets": None if offsets is None else offsets.close()}
            for name, (values, offsets) in self._columns.items()
        }
        manifest = {
            "digest": digest_of(columns),
            "columns": columns,
            "messages": list(messages),
            "bad": [list(bad[0]), bad[1]],
        }
        (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")

    def __enter__(self) -> RowsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for files in self._columns.values():
            for file in files:
                if file is not None:
                    file.close()


def _kinds(rows: Rows) -> dict[str, str]:
    """What every column holds, in words."""
    return {
        name: f"{'one' if column.offsets is None else 'many'} {column.values.dtype} a row"
        for name, column in rows.columns.items()
    }


class _ArrayFile:
    """One array on its way to the disk."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype, self.count = dtype, 0
        self._content = hashlib.blake2b()
        self._file: BinaryIO = path.open("wb")

    def append(self, array: Ints) -> None:
        part = np.ascontiguousarray(array).data
        self._content.update(part)
        self._file.write(part)
        self.count += len(array)

    def close(self) -> Facts:
        self._file.close()
        return {"dtype": self.dtype.str, "count": self.count, "blake2b": self._content.hexdigest()}


def mapped_rows(folder: Path) -> tuple[Rows, list[str]]:
    """The rows of a folder, on the disk until they are used, and what is to be logged about them.

    Every file is checked against its size and hash first.

    Raises:
        StorageError: something is missing, cut short or changed.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        columns = {
            name: Column(
                _mapped(folder / f"{number}.values", facts["values"]),
                None if facts["offsets"] is None else _mapped(folder / f"{number}.offsets", facts["offsets"]),
            )
            for number, (name, facts) in enumerate(manifest["columns"].items())
        }
        if manifest["digest"] != digest_of(manifest["columns"]):
            raise StorageError(f"{MANIFEST} does not fit its own digest")
        rows = Rows(columns, manifest["digest"])
        records, count = manifest["bad"]
        rows.bad = list(records), int(count)
        return rows, [str(message) for message in manifest["messages"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{MANIFEST} or a file that it lists cannot be read ({error})") from error


def _mapped(path: Path, facts: Facts) -> Ints:
    dtype, count = np.dtype(str(facts["dtype"])), int(facts["count"])
    if path.stat().st_size != count * dtype.itemsize:
        raise StorageError(f"{path.name} has {path.stat().st_size} bytes, not {count * dtype.itemsize}")
    if checksum(path, "blake2b") != facts["blake2b"]:
        raise StorageError(f"{path.name} differs from its checksum")
    if count == 0:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))
