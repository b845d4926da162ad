"""The rows of a table of any format, file by file, in flat memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from palm.core.errors import DataError
from palm.reader.tables.arrow import arrow_rows, parquet_rows
from palm.reader.tables.columns import Columns
from palm.reader.tables.delimited import csv_rows, tsv_rows
from palm.reader.tables.files import TableFormat, files_of, format_of
from palm.reader.tables.jsonl import json_rows
from palm.reader.tables.record import Head, Refuse, TableRow, cut

_Rows = Callable[[Path, Head, Refuse], Iterator[TableRow]]

_READ: Mapping[TableFormat, _Rows] = {
    "tsv": tsv_rows,
    "csv": csv_rows,
    "jsonl": json_rows,
    "parquet": parquet_rows,
    "arrow": arrow_rows,
}


def read_table(
    path: Path, columns: Columns, refuse: Refuse | None = None, default: TableFormat | None = None
) -> Iterator[TableRow]:
    """The rows of a table, lazily, with the reader's columns.

    Args:
        path: a file, or what `files_of` makes files of.
        columns: those of the reader.
        refuse: called with what is wrong with a row, which is left out; None to raise it.
        default: the format of a file whose name tells none.

    Raises:
        DataError: no such file, no rows, a missing column, or a row that cannot be read.
    """
    refuse = _raise if refuse is None else refuse
    count = 0

    def left_out(error: DataError) -> None:
        nonlocal count
        count += 1
        refuse(error)

    header: list[str] = []
    for file in files_of(path):
        kind = format_of(file) or default or "tsv"

        def head(names: Sequence[str], place: str, varies: bool = kind == "jsonl") -> Sequence[str]:
            header[:] = names
            return columns.head(names, place, varies)

        for raw in _READ[kind](file, head, left_out):
            try:
                row = columns.row(raw)
            except DataError as error:
                left_out(error)
            else:
                count += 1
                yield row
    if not count:
        names = cut(", ".join(header))
        after = f"the file ends after its header ({names})" if header else "the file is empty"
        raise DataError(f"{path}: {after}; expected rows below it")
    columns.finish(path)


def raw_rows(path: Path, default: TableFormat | None = None) -> Iterator[TableRow]:
    """The rows of a table with all columns of its files.

    Raises:
        DataError: as `read_table`.
    """
    for file in files_of(path):
        yield from _READ[format_of(file) or default or "tsv"](file, lambda *_: None, _raise)


def _raise(error: DataError) -> None:
    raise error
