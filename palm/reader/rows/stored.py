"""Rows in a folder with one file per array, written in parts and memory-mapped for reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from palm.core.directories import verify
from palm.core.errors import PalmError
from palm.core.io import read_object, wrap_read_errors, write_json
from palm.reader.rows.rows import Column, Ints, Rows
from palm.reader.text.bad_rows import BadRows

DESCRIPTION = "rows.json"


def write_rows(folder: Path, parts: Iterable[Rows], messages: Sequence[str], bad: BadRows) -> None:
    """Write rows in parts, only one of which is in memory.

    Args:
        folder: an empty folder.
        parts: parts that all have the same columns.
        messages: the warnings about the rows, to be logged on later use; complete after the last part.
        bad: the rows that were left out or repaired; complete after the last part.

    Raises:
        OSError: the folder cannot be written to.
        PalmError: a part has other columns, or values of another type.
    """
    kinds: dict[str, str] = {}
    files: dict[Path, BinaryIO] = {}
    columns: dict[str, Column] = {}
    with ExitStack() as opened:
        for rows in parts:
            columns = rows.columns
            kinds = kinds or _kinds(rows)
            if _kinds(rows) != kinds:
                raise PalmError(
                    f"the reader encodes some rows as {kinds} and others as {_kinds(rows)}; "
                    "encode should return the same columns for all examples"
                )
            for number, column in enumerate(columns.values()):
                values = folder / f"{number}.values"
                offsets = folder / f"{number}.offsets"
                if values not in files:
                    files[values] = opened.enter_context(values.open("xb"))
                if column.offsets is not None:
                    # Offsets count from the file's first value; those of the first part begin with a 0.
                    shifted = column.offsets + files[values].tell() // column.values.itemsize
                    if offsets not in files:
                        files[offsets] = opened.enter_context(offsets.open("xb"))
                        files[offsets].write(shifted[:1].data)
                    files[offsets].write(shifted[1:].data)
                files[values].write(np.ascontiguousarray(column.values).data)
    arrays = {
        name: {part: array.dtype.str for part, array in vars(column).items() if array is not None}
        for name, column in columns.items()
    }
    content = {"digest": Rows(_columns(folder, arrays)).digest, "columns": arrays, "messages": list(messages)}
    write_json(folder / DESCRIPTION, {**content, "bad": (bad.records, bad.count)})


def _kinds(rows: Rows) -> dict[str, str]:
    """The type of every column, for messages."""
    return {
        name: f"{'one' if column.offsets is None else 'many'} {column.values.dtype} per row"
        for name, column in rows.columns.items()
    }


def mapped_rows(folder: Path) -> tuple[Rows, list[str]]:
    """The memory-mapped rows of a folder and the warnings to be logged about them.

    Raises:
        StorageError: a file is missing, truncated or changed.
    """
    # Every file is read once for its checksum; otherwise, a flipped bit would silently train on wrong rows.
    verify(folder, (DESCRIPTION,))
    about = read_object(folder / DESCRIPTION)
    with wrap_read_errors(folder / DESCRIPTION):
        rows = Rows(_columns(folder, about["columns"]), about["digest"])
        records, count = about["bad"]
        rows.bad = (list(records), int(count))
        return rows, [str(message) for message in about["messages"]]


def _columns(folder: Path, arrays: Mapping[str, Mapping[str, str]]) -> dict[str, Column]:
    """The mapped columns of a folder, from the type of each of their arrays."""
    return {
        name: Column(**{part: _mapped(folder / f"{number}.{part}", kind) for part, kind in parts.items()})
        for number, (name, parts) in enumerate(arrays.items())
    }


def _mapped(path: Path, kind: str) -> Ints:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, kind)
    return np.asarray(np.memmap(path, np.dtype(kind), mode="r"))
