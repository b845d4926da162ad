"""Tables in Parquet and Arrow files, read in batches of rows by pyarrow (extra `parquet`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.io import parse_json, wrap_read_errors
from palm.reader.tables.files import format_of, seekable
from palm.reader.tables.record import ClassId, OnHeader, Refuse, TableRow

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
