"""The rows of a table of any format, file by file, in flat memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from palm.core.errors import DataError
from palm.reader.tables.arrow import arrow_rows, file_schema, parquet_rows
from palm.reader.tables.columns import Columns
from palm.reader.tables.delimited import csv_rows, tsv_rows
from palm.reader.tables.files import TableFormat, files_of, format_of
from palm.reader.tables.jsonl import json_rows
from palm.reader.tables.record import Head, Refuse, TableRow, cut
from palm.reader.tables.selection import check_unchanged, is_selection, read_selection, table_of
from palm.reader.tables.squad_rows import squad_rows

LookUp = Callable[[Sequence[str], str, bool], Sequence[str] | None]

_Rows = Callable[[Path, Head, Refuse], Iterator[TableRow]]

_READ: Mapping[TableFormat, _Rows] = {
    "tsv": tsv_rows,
    "csv": csv_rows,
    "jsonl": json_rows,
    "parquet": parquet_rows,
    "arrow": arrow_rows,
    "squad": squad_rows,
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
    header: Sequence[str] = ()

    def left_out(error: DataError) -> None:
        nonlocal count
        count += 1
        refuse(error)

    def look_up(names: Sequence[str], place: str, varies: bool) -> Sequence[str]:
        nonlocal header
        header = names
        return columns.head(names, place, varies)

    for raw in raw_rows(path, look_up, left_out, default):
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
        lacks = "no row of the table was chosen" if is_selection(path) else f"{after}; expected rows below it"
        raise DataError(f"{path}: {lacks}")
    columns.finish(path)


def raw_rows(
    path: Path,
    look_up: LookUp | None = None,
    refuse: Refuse | None = None,
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
    refuse = _raise if refuse is None else refuse
    files = files_of(table_of(path))
    wanted = None
    if is_selection(path):
        selection = read_selection(path)
        check_unchanged(selection, path, files)
        wanted = np.zeros(max(selection.rows, default=-1) + 1, dtype=np.bool_)
        wanted[list(selection.rows)] = True
    number = 0
    for file in files:
        kind = format_of(file) or default or "tsv"

        def head(
            names: Sequence[str], place: str, varies: bool = kind in ("jsonl", "squad")
        ) -> Sequence[str] | None:
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise DataError(f"{place}: the header names {twice[0]!r} twice")
            return None if look_up is None else look_up(names, place, varies)

        for row in _READ[kind](file, head, refuse):
            if wanted is None or (number < len(wanted) and wanted[number]):
                yield row
            number += 1


def arrow_schema(path: Path) -> Any:
    """The columns of a table of Parquet and Arrow files with their types; None where a file is another."""
    files = files_of(table_of(path))
    if not {format_of(file) for file in files} <= {"parquet", "arrow"}:
        return None
    schemas = [file_schema(file) for file in files]
    return import_module("pyarrow").unify_schemas(schemas, promote_options="permissive")


def pass_over(error: DataError) -> None:
    """Leave a row out that cannot be read, where its reader tells of it."""


def _raise(error: DataError) -> None:
    raise error
