"""Tab-separated tables with a header: every row as named cells, with its place for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from palm.core.errors import DataError
from palm.core.registry import did_you_mean

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TableRow(NamedTuple):
    """One row of a table: its cells by column name, and `file:line`."""

    cells: dict[str, str]
    place: str


def read_table(
    path: Path, columns: Sequence[str], refuse: Callable[[DataError], object] | None = None
) -> Iterator[TableRow]:
    """The rows of a TSV file, lazily.

    The first line names the columns, in any order; other columns are passed on unread.
    Only line feeds (or carriage return and line feed) end a line, and quotes are text.

    Args:
        path: a UTF-8 file.
        columns: those that the header must have.
        refuse: called with what is wrong with a row, which is left out; None to raise it.

    Raises:
        DataError: no such file, no rows, a missing column; a row that is not UTF-8 or has another number of
            cells.
    """
    refuse = _raise if refuse is None else refuse
    lines = _lines(path)
    header = _header(_text(next(lines, b""), f"{path}:1"), columns, path)
    number = 1
    blank = 0
    for number, content in enumerate(lines, start=2):
        if not content.strip() and b"\t" not in content:  # an editor's blank line at the end is no row
            blank = blank or number
            continue
        if blank:
            refuse(DataError(_wrong_width(f"{path}:{blank}", "", 1, header)))
            blank = 0
        try:
            line = _text(content, place := f"{path}:{number}")
            cells = line.split("\t")
            if len(cells) != len(header):
                raise DataError(_wrong_width(place, line, len(cells), header))
        except DataError as error:
            refuse(error)
        else:
            yield TableRow(dict(zip(header, cells, strict=True)), place)
    if number == 1 or blank == 2:
        raise DataError(
            f"{path}: the file ends after its header ({', '.join(header)}); expected rows below it"
        )


def _raise(error: DataError) -> None:
    raise error


def _text(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 1]
        raise DataError(f"{place}: {found!r} is not UTF-8 text; save the file as UTF-8") from error


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                yield content.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise DataError(f"{path}: cannot read the data file ({error.strerror})") from error


def _header(line: str, columns: Sequence[str], path: Path) -> list[str]:
    if not line.strip():
        raise DataError(f"{path}:1: expected a header that names the columns ({', '.join(columns)})")
    header = line.split("\t")
    missing = [name for name in columns if name not in header]
    if missing:
        # The name in the file is the mistake, so it is the one to be changed.
        spare = [name for name in header if name not in columns]
        close = next((name for name in spare if did_you_mean(missing[0], [name])), None)
        hint = f"; rename {_cut(close)!r} to {missing[0]!r}" if close else ""
        lacks = f"the header lacks {', '.join(map(repr, missing))}"
        raise DataError(f"{path}:1: {lacks}; it names {_cut(', '.join(header))}{hint}")
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}:1: the header names {name!r} twice")
    return header


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"


def _wrong_width(place: str, line: str, width: int, header: Sequence[str]) -> str:
    expected = f"expected {len(header)} ({', '.join(header)})"
    if not line.strip():
        return f"{place}: a blank line, {expected}; remove it"
    columns = "1 column" if width == 1 else f"{width} columns"
    return f"{place}: {columns}, {expected}; the line starts with {line[:40]!r}"
