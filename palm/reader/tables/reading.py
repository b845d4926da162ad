"""The rows of a table of any format, file by file, in flat memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.reader.tables.arrow import arrow_rows, file_schema, parquet_rows
from palm.reader.tables.columns import Columns
from palm.reader.tables.files import TableFormat, files_of, format_of
from palm.reader.tables.lines import csv_records, json_records, text_rows, tsv_records
from palm.reader.tables.record import Head, Refuse, TableRow, cut
from palm.reader.tables.selection import chosen_of, is_selection, read_selection, table_of
from palm.reader.tables.squad_rows import squad_rows

LookUp = Callable[[Sequence[str], str, bool], Sequence[str] | None]

_READ: Mapping[TableFormat, Callable[[Path, Head, Refuse], Iterator[TableRow]]] = {
    "tsv": partial(text_rows, split=tsv_records),
    "csv": partial(text_rows, split=csv_records),
    "jsonl": partial(text_rows, split=json_records),
    "parquet": parquet_rows,
    "arrow": arrow_rows,
    "squad": squad_rows,
}


def fail(error: DataError) -> None:
    """Raise the problem with a row."""
    raise error


def pass_over(error: DataError) -> None:
    """Leave a row out that cannot be read, where its reader tells of it."""


def read_table(
    path: Path, columns: Columns, refuse: Refuse = fail, default: TableFormat | None = None
) -> Iterator[TableRow]:
    """The rows of a table, lazily, with the reader's columns.

    Args:
        path: a file, or what `files_of` makes files of.
        columns: those of the reader.
        refuse: called with what is wrong with a row, which is left out.
        default: the format of a file whose name tells none.

    Raises:
        DataError: no such file, no rows, a missing column, or a row that cannot be read.
    """
    is_empty = True

    def left_out(error: DataError) -> None:
        nonlocal is_empty
        is_empty = False
        refuse(error)

    for raw in raw_rows(path, columns.head, left_out, default):
        is_empty = False
        try:
            row = columns.row(raw)
        except DataError as error:
            refuse(error)
        else:
            yield row
    if is_empty:
        names = cut(", ".join(columns.names))
        after = f"the file ends after its header ({names})" if names else "the file is empty"
        if is_selection(path):
            chosen = read_selection(path)
            raise DataError(f"{chosen.table}: {dict(chosen.settings)} chooses no row; change it")
        raise DataError(f"{path}: {after}; expected rows below it")
    columns.finish(path)


def raw_rows(
    path: Path,
    look_up: LookUp | None = None,
    refuse: Refuse = fail,
    default: TableFormat | None = None,
) -> Iterator[TableRow]:
    """The rows of a table with the columns of its files.

    Args:
        path: as of `read_table`.
        look_up: takes the names of a file's columns, their place, and whether they may vary from row to row;
            returns those that are wanted, or None for all.
        refuse: as of `read_table`.
        default: as of `read_table`.

    Raises:
        DataError: as `read_table`.
    """
    files = files_of(table_of(path))
    if len({*files}) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise DataError(f"{twice} stands twice among the files of a table; name it once")

    def rows_in(file: Path) -> Iterator[TableRow]:
        kind = format_of(file) or default or "tsv"

        def head(names: Sequence[str], place: str) -> Sequence[str] | None:
            if len({*names}) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{place}: the header names {twice!r} twice")
            return None if look_up is None else look_up(names, place, kind in ("jsonl", "squad"))

        return _READ[kind](file, head, refuse)

    rows = chain.from_iterable(map(rows_in, files))
    yield from compress(rows, chain(chosen_of(path, files), repeat(False))) if is_selection(path) else rows


def arrow_schemas(path: Path) -> list[Any]:
    """The columns and types of each file of a table of Parquet and Arrow files; none where one is another."""
    files = files_of(table_of(path))
    is_typed = {format_of(file) for file in files} <= {"parquet", "arrow"}
    return [file_schema(file) for file in files] if is_typed else []
