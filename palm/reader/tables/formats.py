"""The formats of tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.io import describe_error, parse_json, unique_keys, wrap_read_errors
from palm.reader.tables.columns import ClassId, OnHeader, Refuse, TableRow, cut
from palm.reader.tables.files import format_of, opened, seekable

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


BATCH = 256
"""Rows converted to Python values at a time; with 1024, memory grows by 3 MB more."""


def parquet_rows(file: Path, on_header: OnHeader, refuse: Refuse) -> Iterator[TableRow]:  # noqa: ARG001
    """The rows of a Parquet file; a place is the row group and the row in it, both counted from 1.

    Args:
        file: the file.
        on_header: called with the column names and the file name.
        refuse: never called, because every row can be read.

    Raises:
        DataError: a missing or damaged file, pyarrow is not installed, or an error from `on_header`.
    """
    with _opened(file, "Parquet") as table:
        columns = on_header(table.schema_arrow.names, str(file))
        names = _class_names(table.schema_arrow)
        for group in range(table.num_row_groups):
            batches = table.iter_batches(BATCH, row_groups=[group], columns=columns, use_threads=False)
            yield from _placed(batches, f"{file}: row group {group + 1}", names)


def arrow_rows(file: Path, on_header: OnHeader, refuse: Refuse) -> Iterator[TableRow]:  # noqa: ARG001
    """The rows of an Arrow file saved by the library `datasets`; see `parquet_rows`."""
    with _opened(file, "an Arrow file") as batches:
        columns = on_header(batches.schema.names, str(file))
        names = _class_names(batches.schema)
        for number, batch in enumerate(batches, start=1):
            wanted = batch if columns is None else batch.select(columns)
            parts = (wanted.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))
            yield from _placed(parts, f"{file}: record batch {number}", names)


def file_schema(file: Path) -> Any:
    """The `pyarrow.Schema` of a Parquet or Arrow file."""
    is_parquet = format_of(file) == "parquet"
    with _opened(file, "Parquet" if is_parquet else "an Arrow file") as table:
        return table.schema_arrow if is_parquet else table.schema


@contextmanager
def _opened(file: Path, kind: str) -> Iterator[Any]:
    try:
        from pyarrow import ipc, parquet
    except ImportError:
        raise DataError(f"{file}: this format needs pyarrow: pip install 'palm-torch[parquet]'") from None
    with seekable(file) as stream, wrap_read_errors(file, f" as {kind}", DataError):
        if kind == "Parquet":
            yield parquet.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 16)
        else:
            yield ipc.open_stream(stream)


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Column -> the names of the label ids in it or its lists, as the library `datasets` stores them."""
    found = {}
    with suppress(KeyError, TypeError, ValueError, AttributeError):  # other metadata
        features = parse_json(schema.metadata[b"huggingface"])["info"]["features"]
        for column, feature in features.items():
            inner = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
            if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
                found[column] = [str(name) for name in inner["names"]]
    return found


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if type(value) is not int or not 0 <= value < len(names):
        return value
    named = ClassId(value)
    named.name = names[value]
    return named


def _placed(batches: Iterator[Any], place: str, names: dict[str, list[str]]) -> Iterator[TableRow]:
    from pyarrow import default_memory_pool

    row = 0
    for batch in batches:
        batch.validate(full=True)  # offsets of a damaged file may point outside its buffers
        rows = batch.to_pylist()
        del batch
        # Otherwise, the pool keeps the pages of all threads and earlier batches: 28 MiB for a 40 MB file.
        default_memory_pool().release_unused()
        for cells in rows:
            row += 1
            for column in names.keys() & cells.keys():
                cells[column] = _named(cells[column], names[column])
            yield TableRow(cells, f"{place}, row {row}")
