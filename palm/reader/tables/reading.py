"""Read the rows of a table of any format, file by file and in bounded memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

from palm.core.errors import DataError
from palm.core.io import describe_error, parse_json, unique_keys, wrap_read_errors
from palm.reader.squad import squad_rows
from palm.reader.tables.columns import ClassId, Columns, OnHeader, TableRow, cut
from palm.reader.tables.files import (
    WHOLE,
    TableFormat,
    chosen_of,
    files_of,
    format_of,
    is_compressed,
    is_selection,
    lines_of,
    max_cell,
    opened,
    read_selection,
    table_of,
    too_large,
)

Row = TableRow | DataError
"""A row of a table, or the problem with one that cannot be read."""


def usable(row: Row) -> TableRow:
    """Return a row, or raise the problem with it."""
    if isinstance(row, DataError):
        raise row
    return row


def all_columns(names: Sequence[str], place: str, varies: bool) -> None:
    """Read all columns of a file."""


def read_table(path: Path, columns: Columns, default: TableFormat | None = None) -> Iterator[Row]:
    """The rows of a table with the reader's columns, lazily.

    Args:
        path: a path that `files_of` accepts, or a selection of rows.
        columns: the reader's columns.
        default: the format of files whose suffix does not determine it.

    Raises:
        DataError: no such file, no rows, or a missing column.
    """
    is_empty = True
    for row in raw_rows(path, columns.find, default):
        is_empty = False
        if isinstance(row, TableRow):
            try:
                row = columns.row(row)
            except DataError as error:
                row = error
        yield row
    if is_empty:
        names = cut(", ".join(columns.names))
        if is_selection(path):
            chosen = read_selection(path)
            raise DataError(f"{chosen.table}: {dict(chosen.settings)} select no rows; change the settings")
        found = f"only a header ({names})" if names else "no rows"
        expected = "question (data, paragraphs, qas)" if default == "squad" else "row"
        raise DataError(f"{path}: found {found}; expected at least one {expected}")
    columns.finish(path)


def raw_rows(
    path: Path, look_up: OnHeader = all_columns, default: TableFormat | None = None
) -> Iterator[Row]:
    """The rows of a table with the columns of its files.

    Args:
        path: see `read_table`.
        look_up: see `OnHeader`.
        default: see `read_table`.

    Raises:
        DataError: see `read_table`.
    """
    files = files_of(table_of(path))
    kinds = [format_of(file) or default or "tsv" for file in files]
    each = (_READ[kind](file, look_up) for kind, file in zip(kinds, files, strict=True))
    rows = chain.from_iterable(each)
    chosen = chain(chosen_of(path, files), repeat(False)) if is_selection(path) else repeat(True)
    yield from (row for row in rows if isinstance(row, DataError) or next(chosen))


# Formats

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)

Record = tuple[int, list[str] | dict[str, Any], str]
"""The line number where a record starts, its cells or JSON object, and a problem with it, or ''."""


def text_rows(
    file: Path, on_header: OnHeader, split: Callable[[Iterable[bytes]], Iterator[Record]]
) -> Iterator[Row]:
    """The rows of a text file in UTF-8.

    Args:
        file: a file whose first record names the columns, unless its records are JSON objects.
        on_header: called with the column names and their place.
        split: `tsv_records`, `csv_records` or `json_records`.

    Raises:
        DataError: no such file, a line that is too large, or an error from `on_header`.
    """
    with opened(file) as stream:
        records = split(lines_of(stream, file))
        header: list[str] | None = None
        expected = "a JSON object"
        if split is not json_records:
            header = _header(next(records, (1, [], "")), on_header, file)
            expected = f"{len(header)} ({', '.join(header)})"
        for line, cells, problem in _without_trailing_blanks(records, expected):
            if isinstance(cells, list) and header is not None:
                if len(cells) != len(header):
                    problem = problem or _wrong_width(cells, expected, "\t" if split is tsv_records else ",")
                cells = dict(zip(header, cells, strict=False))
            elif header is None and not problem:
                header = [*cells]
                on_header(header, f"{file}:{line}", True)
            if problem:
                yield DataError(f"{file}:{line}: {problem}")
            elif isinstance(cells, dict):
                yield TableRow(cells, f"{file}:{line}")


def _header(record: Record, on_header: OnHeader, file: Path) -> list[str]:
    _, cells, problem = record
    if problem:
        raise DataError(f"{file}:1: {problem}")
    header = [*cells] if "".join(cells).strip() else []
    on_header(_distinct(header, f"{file}:1"), f"{file}:1", False)
    return header


def _distinct(names: Sequence[str], place: str) -> Sequence[str]:
    """The names of columns, which have to be different."""
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{place}: the header names {twice!r} twice; rename one of the columns")
    return names


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


def tsv_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Records of TSV: lines end with a line feed (or carriage return and line feed), and quotes are text."""
    for number, content in enumerate(lines, start=1):
        line, problem = _decoded(content.removesuffix(b"\n").removesuffix(b"\r"), number)
        yield number, line.split("\t"), problem


def csv_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Records of CSV according to RFC 4180, including line breaks in quoted cells."""
    problems: list[str] = []  # with the bytes of the current record

    def decoded() -> Iterator[str]:
        for number, content in enumerate(lines, start=1):
            line, problem = _decoded(content, number)
            problems.extend([problem] if problem else [])
            yield line

    csv.field_size_limit(max_cell())  # an unclosed quote would read the whole file
    records = csv.reader(decoded(), strict=True)
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


def json_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Records of JSON lines, with one object per line."""
    for number, content in enumerate(lines, start=1):
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


def _wrong_width(cells: Sequence[str], expected: str, separator: str) -> str:
    columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
    remedy = "; put a cell with commas into double quotes" if separator == "," else ""
    start = cut(separator.join(cells), 40)
    return f"{columns}, expected {expected}; the line starts with {start!r}{remedy}"


BATCH = 256
"""Rows converted to Python values at a time; with 1024, memory grows by 3 MB more."""

PAGE = 8192
"""Rows read of Parquet at a time, if they are small: each time, its dictionary of texts is copied."""

MANY_CELLS = 4
"""These rows may be this many times as large as a cell."""


def arrow_rows(file: Path, on_header: OnHeader, is_parquet: bool) -> Iterator[Row]:
    """The rows of a Parquet file, or of an Arrow file saved by the library `datasets`.

    A place is the row group (or record batch) and the row in it, both counted from 1.

    Args:
        file: the file.
        on_header: called with the column names and the file name.
        is_parquet: True for Parquet.

    Raises:
        DataError: a missing or damaged file, a row that is too large, pyarrow is not installed, or an error
            from `on_header`.
    """
    with _opened(file, is_parquet) as source:
        from pyarrow import default_memory_pool  # after `_opened`, which says how to install it

        schema = source.schema_arrow if is_parquet else source.schema
        columns = on_header(_distinct(schema.names, str(file)), str(file), False)
        labels = _labelled(schema)
        batches = _groups(source, columns, file) if is_parquet else _batches(source, columns)
        part = "row group" if is_parquet else "record batch"
        row = 0
        group = 0
        for number, batch in batches:
            row = row if number == group else 0
            group = number
            # Offsets of a damaged file may point outside its buffers.
            batch.validate(full=True)
            for some in _bounded(batch, f"{file}: {part} {number}", row):
                for cells in some:
                    row += 1
                    for column in labels.keys() & cells.keys():
                        cells[column] = _named(cells[column], labels[column])
                    yield TableRow(cells, f"{file}: {part} {number}, row {row}")
            del batch
            # Otherwise, the pool keeps the pages of all threads and earlier batches: 28 MiB of 40 MB.
            default_memory_pool().release_unused()


def _groups(table: Any, columns: Sequence[str] | None, file: Path) -> Iterator[tuple[int, Any]]:
    """The batches of a Parquet file, each with the number of its row group."""
    limit = max_cell()
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        chunks = [group.column(k) for k in range(group.num_columns)]
        sizes = [
            chunk.total_uncompressed_size
            for chunk in chunks
            if columns is None or chunk.path_in_schema.split(".")[0] in columns
        ]
        per_row = sum(sizes) // max(1, group.num_rows)
        if per_row > limit:
            raise too_large(f"{file}: row group {number + 1}", "a row", limit)
        size = max(1, min(PAGE, MANY_CELLS * limit // max(1, per_row)))
        for batch in table.iter_batches(size, row_groups=[number], columns=columns, use_threads=False):
            yield number + 1, batch


def _batches(stream: Any, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    for number, batch in enumerate(stream, start=1):
        yield number, batch if columns is None else batch.select(columns)


def _bounded(batch: Any, place: str, before: int) -> Iterator[list[dict[str, Any]]]:
    """The rows of a batch as Python values, at most `BATCH` rows and `max_cell` bytes at a time.

    Args:
        batch: a record batch.
        place: its place.
        before: the number of rows before it.
    """
    limit = max_cell()
    sizes = sum(map(_bytes_of_rows, batch.columns), np.zeros(batch.num_rows, np.int64))
    start = 0
    while start < batch.num_rows:
        if sizes[start] > limit:
            raise too_large(f"{place}, row {before + start + 1}", "the row", limit)
        fitting = int(np.searchsorted(np.cumsum(sizes[start : start + BATCH]), limit, side="right"))
        part = batch.slice(start, fitting)
        columns = [each.cast(_without_dictionary(each.type)) for each in part.columns]
        yield type(part).from_arrays(columns, part.schema.names).to_pylist()
        start += fitting


def _without_dictionary(kind: Any) -> Any:
    """The type that becomes the same Python values, ten times as fast."""
    from pyarrow import list_, types

    if types.is_dictionary(kind):
        return kind.value_type
    return list_(_without_dictionary(kind.value_type)) if types.is_list(kind) else kind


def _bytes_of_rows(array: Any) -> Any:
    """The bytes of each row's value, where a text of a dictionary counts wherever it occurs; int64[rows]."""
    import pyarrow
    from pyarrow import compute

    if isinstance(array, pyarrow.DictionaryArray):
        texts = np.append(_bytes_of_rows(array.dictionary), 0)
        return texts[array.indices.cast("int64").fill_null(len(texts) - 1).to_numpy()]
    if array.type in (pyarrow.string(), pyarrow.large_string(), pyarrow.binary(), pyarrow.large_binary()):
        return compute.binary_length(array).cast("int64").fill_null(0).to_numpy()
    if isinstance(array, pyarrow.FixedSizeListArray):
        array = array.cast(pyarrow.list_(array.type.value_type))
    if isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray):
        ends = np.append(0, np.cumsum(_bytes_of_rows(array.values)))
        return np.diff(ends[array.offsets.to_numpy()])
    if isinstance(array, pyarrow.StructArray):
        return sum(map(_bytes_of_rows, array.flatten()), np.zeros(len(array), np.int64))
    return np.full(len(array), 8)  # of a number


@contextmanager
def _opened(file: Path, is_parquet: bool) -> Iterator[Any]:
    """Open a file; texts that Parquet stores once are not repeated in memory."""
    kind = "Parquet" if is_parquet else "an Arrow file"
    try:
        from pyarrow import ipc, parquet
    except ImportError:
        raise DataError(f"{file}: this format needs pyarrow: pip install 'palm-torch[parquet]'") from None
    if is_compressed(file):
        raise DataError(f"{file}: {kind} cannot be read while it is decompressed; decompress the file first")
    try:
        with opened(file) as stream, wrap_read_errors(file, f" as {kind}", DataError):
            if not is_parquet:
                # As pandas and polars write; `datasets` streams. A file is a stream between its first bytes
                # and a list of places, which is not needed.
                start = 8 if stream.read(6) == b"ARROW1" else 0
                _check_unpacked(file, start)
                stream.seek(start)
                yield ipc.open_stream(stream)
                return
            schema = parquet.read_metadata(stream).schema
            columns = [schema.column(k) for k in range(len(schema))]
            texts = [each.path for each in columns if each.physical_type == "BYTE_ARRAY"]
            yield parquet.ParquetFile(stream, read_dictionary=texts, pre_buffer=False, buffer_size=1 << 16)
    except MemoryError:  # of a length that a damaged file states, or of a batch that is too large
        raise DataError(f"{file}: cannot read as {kind}: it asks for more memory than there is") from None


def _check_unpacked(file: Path, start: int) -> None:
    """Refuse an Arrow file with a batch that is compressed inside, and too large for memory when unpacked."""
    from pyarrow import ipc, memory_map

    limit = WHOLE * max_cell()
    with memory_map(str(file)) as stream:  # what is not looked at is not read
        stream.seek(start)
        for number, message in enumerate(ipc.MessageReader.open_stream(stream)):
            if _unpacked_bytes(message) > limit:
                raise too_large(f"{file}: message {number}", "the unpacked batch", limit)


def _unpacked_bytes(message: Any) -> int:
    """The bytes of an Arrow message that is compressed inside once it is unpacked; 0 for any other.

    Source: Arrow's `Message.fbs`, a FlatBuffer, and the format of compressed buffers.
    """
    content = memoryview(message.metadata)

    def field(table: int, number: int) -> int:
        """The place of a table's field; 0 if it is absent."""
        fields = table - unpack_from("<i", content, table)[0]
        place = 4 + 2 * number
        is_known = place < unpack_from("<H", content, fields)[0]
        start = unpack_from("<H", content, fields + place)[0] if is_known else 0
        return table + start if start else 0

    def referred(place: int) -> int:
        return place + int(unpack_from("<I", content, place)[0])

    batch = referred(field(referred(0), 2))
    if message.type == "dictionary":
        batch = referred(field(batch, 1))
    if message.type == "schema" or not field(batch, 3):
        return 0
    buffers = referred(field(batch, 2))
    count = unpack_from("<I", content, buffers)[0]
    places = np.frombuffer(content, "<i8", 2 * count, buffers + 4).reshape(-1, 2)
    sizes = [unpack_from("<q", message.body, start)[0] for start, length in places.tolist() if length]
    return sum(size for size in sizes if size > 0)


def _labelled(schema: Any) -> dict[str, Any]:
    """The features of columns that have names for label ids, as the library `datasets` stores them."""
    with suppress(KeyError, TypeError, ValueError):  # other metadata
        features = parse_json(schema.metadata[b"huggingface"])["info"]["features"].items()
        return {name: feature for name, feature in features if "'ClassLabel'" in repr(feature)}
    return {}


def _named(value: Any, feature: Any) -> Any:
    """A value with the names of its label ids, also of those in lists and objects."""
    if isinstance(feature, list):
        feature = feature[0]
    if not isinstance(feature, dict) or value is None:
        return value
    if isinstance(value, list | dict):
        inner = feature.get("feature", feature)  # that of a list, or of each key of an object
        if isinstance(value, list):
            return [_named(each, inner) for each in value]
        return {name: _named(each, inner.get(name)) for name, each in value.items()}
    names = feature.get("names")
    if type(value) is not int or not isinstance(names, list) or not 0 <= value < len(names):
        return value
    named = ClassId(value)
    named.name = str(names[value])
    return named


_READ: Mapping[TableFormat, Callable[[Path, OnHeader], Iterator[Row]]] = {
    "tsv": partial(text_rows, split=tsv_records),
    "csv": partial(text_rows, split=csv_records),
    "jsonl": partial(text_rows, split=json_records),
    "parquet": partial(arrow_rows, is_parquet=True),
    "arrow": partial(arrow_rows, is_parquet=False),
    "squad": squad_rows,
}
