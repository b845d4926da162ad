"""Tables of text, TSV, CSV and JSON lines: every row as named cells, with its first line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.files.untrusted import explained, unique_keys
from palm.reader.tables.files import opened
from palm.reader.tables.record import Head, Refuse, TableRow, cut

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)

csv.field_size_limit(1 << 28)  # 256 MiB: a quote that is never closed must not take the whole file


Record = tuple[int, list[str] | dict[str, Any], str]
"""The first line of a record, its cells or its object, and a problem that keeps it from being a row."""


def text_rows(
    file: Path, head: Head, refuse: Refuse, split: Callable[[Iterable[bytes]], Iterator[Record]]
) -> Iterator[TableRow]:
    """The rows of a text file in UTF-8.

    Args:
        file: its first record names the columns, unless its records are objects with keys.
        head: takes these names and their place.
        refuse: takes the problem with a row that is left out.
        split: a function of this module, which finds the records.

    Raises:
        DataError: no such file, or what `head` raises.
    """
    with opened(file) as stream:
        records = split(stream)
        header: list[str] | None = None
        expected = "a JSON object"
        if split is not json_records:
            header = _header(next(records, (1, [], "")), head, file)
            expected = f"{len(header)} ({', '.join(header)})"
        for line, cells, problem in _without_blank_end(records, expected):
            if isinstance(cells, list) and header is not None:
                if len(cells) != len(header):
                    problem = problem or _wrong_width(cells, expected)
                cells = dict(zip(header, cells, strict=False))
            elif header is None and not problem:
                header = [*cells]
                head(header, f"{file}:{line}")
            if problem:
                refuse(DataError(f"{file}:{line}: {problem}"))
            elif isinstance(cells, dict):
                yield TableRow(cells, f"{file}:{line}")


def _header(record: Record, head: Head, file: Path) -> list[str]:
    _, cells, problem = record
    if problem:
        raise DataError(f"{file}:1: {problem}")
    header = [*cells] if "".join(cells).strip() else []
    head(header, f"{file}:1")
    return header


def _without_blank_end(records: Iterable[Record], expected: str) -> Iterator[Record]:
    """The records without an editor's blank lines at the end; other blank lines are a problem."""
    blank = 0
    for line, cells, problem in records:
        if not (problem or len(cells) > 1 or "".join(cells).strip() or isinstance(cells, dict)):
            blank = blank or line
            continue
        if blank:
            yield blank, [], f"a blank line, expected {expected}; remove it"
            blank = 0
        yield line, cells, problem


def tsv_records(stream: Iterable[bytes]) -> Iterator[Record]:
    """TSV: only line feeds (or carriage return and line feed) end a line, quotes are text."""
    for number, content in enumerate(stream, start=1):
        line, problem = _decoded(content.removesuffix(b"\n").removesuffix(b"\r"), number)
        yield number, line.split("\t"), problem


def csv_records(stream: Iterable[bytes]) -> Iterator[Record]:
    """CSV as RFC 4180 has it, line breaks in quoted cells included."""
    problems: list[str] = []  # with the bytes of the record's lines

    def lines() -> Iterator[str]:
        for number, content in enumerate(stream, start=1):
            line, problem = _decoded(content, number)
            problems.extend([problem] if problem else [])
            yield line

    records = csv.reader(lines(), strict=True)
    while True:
        first = records.line_num + 1
        problems.clear()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            yield first, [], f"not CSV: {error}; double a quote within a quoted cell, and close it"
        else:
            yield first, cells, "".join(problems[:1])


def json_records(stream: Iterable[bytes]) -> Iterator[Record]:
    """JSON lines, an object a line."""
    for number, content in enumerate(stream, start=1):
        text, problem = _decoded(content, number)
        cells: Any = []
        if not problem and content.strip():
            try:
                cells = _DECODER.decode(text)
            except (ValueError, RecursionError) as error:  # also a key twice, or a number of many digits
                problem = f"expected a JSON object on the line; {explained(error)}"
            if not isinstance(cells, dict) and not problem:
                problem = f"expected a JSON object with the columns as keys, not {cut(repr(cells), 40)}"
        yield number, [] if problem else cells, problem


def _decoded(content: bytes, number: int) -> tuple[str, str]:
    """A line as text, without a byte-order mark, and the problem with its bytes."""
    if number == 1:
        content = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 1]
        place = f"byte {error.start + 1} of line {number}"
        problem = f"{place}, {found!r}, is not UTF-8 text; save the file as UTF-8"
        return content.decode("utf-8", "replace"), problem


def _wrong_width(cells: Sequence[str], expected: str) -> str:
    columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
    return f"{columns}, expected {expected}; the line starts with {cut(chr(9).join(cells), 40)!r}"
