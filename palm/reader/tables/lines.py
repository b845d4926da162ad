"""Tables in text files: TSV, CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.io import describe_error, unique_keys
from palm.reader.tables.files import opened
from palm.reader.tables.record import OnHeader, Refuse, TableRow, cut

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)

csv.field_size_limit(1 << 28)  # 256 MiB, so that an unclosed quote does not read the whole file

Record = tuple[int, list[str] | dict[str, Any], str]
"""The line number where a record starts, its cells or JSON object, and a problem with it, or ''."""


def text_rows(
    file: Path, on_header: OnHeader, refuse: Refuse, split: Callable[[Iterable[bytes]], Iterator[Record]]
) -> Iterator[TableRow]:
    """The rows of a text file in UTF-8.

    Args:
        file: a file whose first record names the columns, unless its records are JSON objects.
        on_header: called with the column names and their place.
        refuse: called with the problem of a row that is left out.
        split: `tsv_records`, `csv_records` or `json_records`.

    Raises:
        DataError: no such file, or an error from `on_header`.
    """
    with opened(file) as stream:
        records = split(stream)
        header: list[str] | None = None
        expected = "a JSON object"
        if split is not json_records:
            header = _header(next(records, (1, [], "")), on_header, file)
            expected = f"{len(header)} ({', '.join(header)})"
        for line, cells, problem in _without_trailing_blanks(records, expected):
            if isinstance(cells, list) and header is not None:
                if len(cells) != len(header):
                    problem = problem or _wrong_width(cells, expected)
                cells = dict(zip(header, cells, strict=False))
            elif header is None and not problem:
                header = [*cells]
                on_header(header, f"{file}:{line}")
            if problem:
                refuse(DataError(f"{file}:{line}: {problem}"))
            elif isinstance(cells, dict):
                yield TableRow(cells, f"{file}:{line}")


def _header(record: Record, on_header: OnHeader, file: Path) -> list[str]:
    _, cells, problem = record
    if problem:
        raise DataError(f"{file}:1: {problem}")
    header = [*cells] if "".join(cells).strip() else []
    on_header(header, f"{file}:1")
    return header


def _without_trailing_blanks(records: Iterable[Record], expected: str) -> Iterator[Record]:
    """The records without blank lines at the end of the file; other blank lines are a problem."""
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
    """Records of TSV: lines end with a line feed (or carriage return and line feed), and quotes are text."""
    for number, content in enumerate(stream, start=1):
        line, problem = _decoded(content.removesuffix(b"\n").removesuffix(b"\r"), number)
        yield number, line.split("\t"), problem


def csv_records(stream: Iterable[bytes]) -> Iterator[Record]:
    """Records of CSV according to RFC 4180, including line breaks in quoted cells."""
    problems: list[str] = []  # with the bytes of the current record

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
            yield first, [], f"not CSV: {error}; close every quoted cell, and double the quotes inside it"
        else:
            yield first, cells, "".join(problems[:1])


def json_records(stream: Iterable[bytes]) -> Iterator[Record]:
    """Records of JSON lines, with one object per line."""
    for number, content in enumerate(stream, start=1):
        text, problem = _decoded(content, number)
        cells: Any = []
        if not problem and content.strip():
            try:
                cells = _DECODER.decode(text)
                if "\\u" in text:  # an unpaired surrogate can neither be written nor printed
                    json.dumps(cells, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:  # includes repeated keys and too long numbers
                problem = f"expected a JSON object on the line; {describe_error(error)}"
            if not isinstance(cells, dict) and not problem:
                problem = f"expected a JSON object with the columns as keys, not {cut(repr(cells), 40)}"
        yield number, [] if problem else cells, problem


def _decoded(content: bytes, number: int) -> tuple[str, str]:
    """A line as text without a byte-order mark, and the problem with its bytes, or ''."""
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
