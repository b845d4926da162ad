"""Tables of Parquet and Arrow files, read a batch of rows at a time by pyarrow (extra `parquet`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.files.untrusted import wrap_read_errors
from palm.reader.tables.files import format_of, seekable
from palm.reader.tables.record import Head, Refuse, TableRow

BATCH = 256
"""Rows that are Python values at a time; with 1024, memory grows by 3 MB more."""


def parquet_rows(file: Path, head: Head, refuse: Refuse) -> Iterator[TableRow]:  # noqa: ARG001
    """The rows of a Parquet file; a place is the row group and the row in it, both counted from 1.

    Args:
        file: the file.
        head: takes the columns' names and the file.
        refuse: takes nothing, as every row can be read.

    Raises:
        DataError: no such file, a damaged one, pyarrow missing, or what `head` raises.
    """
    parquet = _module("parquet", file)
    with seekable(file) as stream, wrap_read_errors(file, " as Parquet", DataError):
        table = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 16)
        columns = head(table.schema_arrow.names, str(file))
        for group in range(table.num_row_groups):
            batches = table.iter_batches(BATCH, row_groups=[group], columns=columns, use_threads=False)
            yield from _placed(batches, f"{file}: row group {group + 1}")


def arrow_rows(file: Path, head: Head, refuse: Refuse) -> Iterator[TableRow]:  # noqa: ARG001
    """The rows of an Arrow file, as the library `datasets` saves them; see `parquet_rows`."""
    ipc = _module("ipc", file)
    with seekable(file) as stream, wrap_read_errors(file, " as an Arrow file", DataError):
        batches = ipc.open_stream(stream)
        columns = head(batches.schema.names, str(file))
        for number, batch in enumerate(batches, start=1):
            parts = (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))
            wanted = (part if columns is None else part.select(columns) for part in parts)
            yield from _placed(wanted, f"{file}: record batch {number}")


def file_schema(file: Path) -> Any:
    """The columns of a Parquet or Arrow file with their types, a `pyarrow.Schema`."""
    with seekable(file) as stream, wrap_read_errors(file, error=DataError):
        if format_of(file) == "parquet":
            return _module("parquet", file).read_schema(stream)
        return _module("ipc", file).open_stream(stream).schema


def _placed(batches: Iterator[Any], place: str) -> Iterator[TableRow]:
    from pyarrow import default_memory_pool

    row = 0
    for batch in batches:
        rows = batch.to_pylist()
        del batch
        # Else the pool keeps the pages of all threads and former batches: of a file of 40 MB, 28 MiB.
        default_memory_pool().release_unused()
        for cells in rows:
            row += 1
            yield TableRow(cells, f"{place}, row {row}")


def _module(name: str, file: Path) -> Any:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{file}: this format needs pyarrow: pip install 'palm-torch[parquet]'") from None
    return getattr(pyarrow, name)
