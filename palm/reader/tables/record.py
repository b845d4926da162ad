"""The row of a table, and the callbacks for headers and problems that every format's reader takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from palm.core.errors import DataError

Refuse = Callable[[DataError], object]
"""Called with the problem of a row that is left out."""

OnHeader = Callable[[Sequence[str], str], Sequence[str] | None]
"""Called with a file's column names and their place; returns the columns to read, or None for all."""


class TableRow(NamedTuple):
    """One row of a table: its cells by column name, and its place, such as `file:line`."""

    cells: Mapping[str, Any]
    place: str


class ClassId(int):
    """The id of a label that the file itself names, as those of the library `datasets` do."""

    name: str


def cut(text: str, length: int = 80) -> str:
    """The beginning of a text, for a message."""
    return text if len(text) <= length else text[:length] + "…"


def cell_text(value: Any) -> str:
    """The text of a label's cell, which is the same for 1, "1" and 1.0; empty for a missing value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_missing(value: Any) -> bool:
    """Check whether a cell is null, an empty list or blank; the text "null" is a value."""
    return value is None or (isinstance(value, (str, list)) and not (value and str(value).strip()))
