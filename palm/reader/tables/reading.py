"""Read the rows of a table of any format, file by file and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.reader.squad import squad_rows
from palm.reader.tables.columns import Columns, OnHeader, Refuse, TableRow, cut
from palm.reader.tables.files import TableFormat, files_of, format_of
from palm.reader.tables.formats import (
    arrow_rows,
    csv_records,
    file_schema,
    json_records,
    text_rows,
    tsv_records,
)
from palm.reader.tables.selection import chosen_of, is_selection, read_selection, table_of

LookUp = Callable[[Sequence[str], str, bool], Sequence[str] | None]

_READ: Mapping[TableFormat, Callable[[Path, OnHeader, Refuse], Iterator[TableRow]]] = {
    "tsv": partial(text_rows, split=tsv_records),
    "csv": partial(text_rows, split=csv_records),
    "jsonl": partial(text_rows, split=json_records),
    "parquet": partial(arrow_rows, is_parquet=True),
    "arrow": partial(arrow_rows, is_parquet=False),
    "squad": squad_rows,
}


def fail(error: DataError) -> None:
    """Raise the problem with a row."""
    raise error


def ignore(error: DataError) -> None:
    """Leave out an unreadable row that the reader reports elsewhere."""


def read_table(
    path: Path, columns: Columns, refuse: Refuse = fail, default: TableFormat | None = None
) -> Iterator[TableRow]:
    """The rows of a table with the reader's columns, lazily.

    Args:
        path: a path that `files_of` accepts, or a selection of rows.
        columns: the reader's columns.
        refuse: called with the problem of a row that is left out.
        default: the format of files whose suffix does not determine it.

    Raises:
        DataError: no such file, no rows, a missing column, or a row that cannot be read.
    """
    is_empty = True

    def left_out(error: DataError) -> None:
        nonlocal is_empty
        is_empty = False
        refuse(error)

    for raw in raw_rows(path, columns.find, left_out, default):
        is_empty = False
        try:
            row = columns.row(raw)
        except DataError as error:
            refuse(error)
        else:
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
    path: Path,
    look_up: LookUp | None = None,
    refuse: Refuse = fail,
    default: TableFormat | None = None,
) -> Iterator[TableRow]:
    """The rows of a table with the columns of its files.

    Args:
        path: see `read_table`.
        look_up: called with a file's column names, their place, and whether they may vary from row to row;
            returns the columns to read, or None for all.
        refuse: see `read_table`.
        default: see `read_table`.

    Raises:
        DataError: see `read_table`.
    """
    files = files_of(table_of(path))

    def rows_in(file: Path) -> Iterator[TableRow]:
        kind = format_of(file) or default or "tsv"

        def on_header(names: Sequence[str], place: str) -> Sequence[str] | None:
            if len({*names}) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{place}: the header names {twice!r} twice; rename one of the columns")
            return None if look_up is None else look_up(names, place, kind in ("jsonl", "squad"))

        return _READ[kind](file, on_header, refuse)

    rows = chain.from_iterable(map(rows_in, files))
    yield from compress(rows, chain(chosen_of(path, files), repeat(False))) if is_selection(path) else rows


def arrow_schemas(path: Path) -> list[Any]:
    """The schema of each file of a table; empty unless all files are Parquet or Arrow."""
    files = files_of(table_of(path))
    is_typed = {format_of(file) for file in files} <= {"parquet", "arrow"}
    return [file_schema(file) for file in files] if is_typed else []
