"""Tables with a header and a separator, TSV and CSV: every record as named cells, with its first line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from palm.core.errors import DataError
from palm.reader.tables.files import opened
from palm.reader.tables.record import Head, Refuse, TableRow, cut

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

csv.field_size_limit(1 << 28)  # 256 MiB: a quote that is never closed must not take the whole file


class Record(NamedTuple):
    """The cells of a record, its first line, and a problem that keeps it from being a row."""

    line: int
    cells: list[str]
    problem: str = ""


def tsv_rows(file: Path, head: Head, refuse: Refuse) -> Iterator[TableRow]:
    """The rows of a TSV file: only line feeds (or carriage return and line feed) end a line, quotes are text.

    Args:
        file: in UTF-8; its first line names the columns.
        head: takes these names and the header's place.
        refuse: takes the problem with a row that is left out.

    Raises:
        DataError: no such file, or what `head` raises.
    """
    return _rows(file, head, refuse, _tsv_records)


def csv_rows(file: Path, head: Head, refuse: Refuse) -> Iterator[TableRow]:
    """The rows of a CSV file as RFC 4180 has it, line breaks in quoted cells included; see `tsv_rows`."""
    return _rows(file, head, refuse, _csv_records)


def _rows(
    file: Path, head: Head, refuse: Refuse, split: Callable[[Iterable[bytes]], Iterator[Record]]
) -> Iterator[TableRow]:
    with opened(file) as stream:
        records = split(stream)
        header = _header(next(records, Record(1, [])), head, file)
        blank = 0
        for line, cells, problem in records:
            if not problem and len(cells) <= 1 and not "".join(cells).strip():
                blank = blank or line  # an editor's blank line at the end is no row
                continue
            if blank:
                refuse(DataError(_wrong_width(f"{file}:{blank}", [], header)))
                blank = 0
            if problem:
                refuse(DataError(f"{file}:{line}: {problem}"))
            elif len(cells) != len(header):
                refuse(DataError(_wrong_width(f"{file}:{line}", cells, header)))
            else:
                yield TableRow(dict(zip(header, cells, strict=True)), f"{file}:{line}")


def _header(record: Record, head: Head, file: Path) -> list[str]:
    if record.problem:
        raise DataError(f"{file}:1: {record.problem}")
    header = record.cells if "".join(record.cells).strip() else []
    head(header, f"{file}:1")
    return header


def _tsv_records(lines: Iterable[bytes]) -> Iterator[Record]:
    for number, content in enumerate(lines, start=1):
        line, problem = _decoded(content.removesuffix(b"\n").removesuffix(b"\r"), number)
        yield Record(number, line.split("\t"), problem)


def _csv_records(stream: Iterable[bytes]) -> Iterator[Record]:
    lines = _CountedLines(stream)
    records = csv.reader(lines, strict=True)
    while True:
        first = lines.number + 1
        lines.problem = ""
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(first, [], f"not CSV: {error}; double a quote within a quoted cell, and close it")
        else:
            yield Record(first, cells, lines.problem)


class _CountedLines(Iterator[str]):
    """Lines as text, for a parser that takes several for a record.

    Attributes:
        number: of the last line.
        problem: with the bytes of any line since this was set to nothing.
    """

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._lines = iter(stream)
        self.number = 0
        self.problem = ""

    def __next__(self) -> str:
        content = next(self._lines)
        self.number += 1
        line, problem = _decoded(content, self.number)
        self.problem = self.problem or problem
        return line


def _decoded(content: bytes, number: int) -> tuple[str, str]:
    """A line as text, without a byte-order mark, and the problem with its bytes."""
    if number == 1:
        content = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        return content.decode("utf-8", "replace"), not_utf8(error, number)


def not_utf8(error: UnicodeDecodeError, number: int) -> str:
    """The problem with a line that is no UTF-8."""
    found = error.object[error.start : error.start + 1]
    return f"byte {error.start + 1} of line {number}, {found!r}, is not UTF-8 text; save the file as UTF-8"


def _wrong_width(place: str, cells: Sequence[str], header: Sequence[str]) -> str:
    expected = f"expected {len(header)} ({', '.join(header)})"
    if not cells:
        return f"{place}: a blank line, {expected}; remove it"
    columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
    return f"{place}: {columns}, {expected}; the line starts with {cut(chr(9).join(cells), 40)!r}"
