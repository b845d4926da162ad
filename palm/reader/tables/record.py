"""A row of a table, and the calls with which a format's reader tells of its header and its problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from palm.core.errors import DataError

Refuse = Callable[[DataError], object]
"""Takes the problem with a row that is left out."""

Head = Callable[[Sequence[str], str], Sequence[str] | None]
"""Takes the names of a file's columns and their place; returns those that are wanted, or None for all."""


class TableRow(NamedTuple):
    """One row of a table: its cells by column name, and its place, as `file:line`."""

    cells: Mapping[str, Any]
    place: str


def cut(text: str, length: int = 80) -> str:
    """The beginning of a text, for a message."""
    return text if len(text) <= length else text[:length] + "…"


def cell_text(value: Any) -> str:
    """The text of a cell that names a label: of 1, "1" and 1.0 the same; nothing for a cell without value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_missing(value: Any) -> bool:
    """Tell whether a cell has no value: null, an empty list or a blank text, but never the word "null"."""
    return value is None or (isinstance(value, (str, list)) and not (value and str(value).strip()))
