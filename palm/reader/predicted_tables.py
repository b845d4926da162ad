"""Predictions as a table: the columns of the input followed by those of the task, in the input's order."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from palm.core.errors import StorageError
from palm.core.files.door import make_folder
from palm.core.files.fs import write_atomically
from palm.reader.base import Reader
from palm.reader.chunks import chunks_of
from palm.reader.predictions import Record, SavedRecords, write_records
from palm.reader.tables.reading import arrow_schemas, raw_rows

KIND = "predictions"
"""The kind of a file whose name the user chooses (see `write_atomically`)."""

LEFT_OUT = ("index", "logits", "probs", "nbest", "label_name", "label_names")
"""Fields of a record that a table shows in another form, or not at all."""

BATCH = 1024
"""Rows in memory at a time; the first batch determines the task's columns and their types."""

OTHER_FILES = (".json", ".tsv", ".txt", ".xlsx", ".xls", ".pdf", ".html", ".arrow", ".gz", ".zip")
"""Suffixes of file names that are not meant as names of folders."""


def is_table_name(path: Path) -> bool:
    """Check whether predictions under this name are a table rather than a folder of files."""
    return path.suffix.lower() in (".jsonl", *_WRITE)


def check_output_name(path: Path) -> None:
    """Refuse a file format that palm does not write, instead of creating a folder of that name.

    Raises:
        StorageError: the name has such a suffix.
    """
    if path.suffix.lower() in OTHER_FILES and not path.is_dir():
        raise StorageError(f"{path}: expected a folder, or a name that ends in .jsonl, .csv or .parquet")


def task_cells(record: Mapping[str, Any]) -> Record:
    """The columns of a prediction: `label` (its name, if it has one), `probability`, and the other fields."""
    cells = {name: value for name, value in record.items() if name not in LEFT_OUT}
    if "label_name" in record:
        cells["label"] = record["label_name"]
    if (probs := record.get("probs")) is not None:
        cells["probability"] = max(probs) if isinstance(probs, list) else probs
        if "labels" in record:
            cells["labels"] = record.get("label_names", record["labels"])
            # Words have names as labels and a probability each; a text's several labels are ids.
            is_of_words = isinstance(next(iter(record["labels"]), 0), str)
            cells["probability"] = probs if is_of_words else [probs[label] for label in record["labels"]]
    if record.get("nbest"):
        cells["probability"] = record["nbest"][0].get("probability")
    return cells


def joined_rows(
    rows: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]], names: Collection[str]
) -> Iterator[Record]:
    """Each row joined with its prediction; a task column whose name is taken becomes `predicted_…`.

    Args:
        rows: rows of the input.
        records: the prediction for each row.
        names: all column names of the input.
    """
    for row, record in zip(rows, records, strict=True):
        joined = dict(row)
        for name, value in task_cells(record).items():
            if name == "id" and name in names:
                continue
            while name in names:
                name = f"predicted_{name}"
            joined[name] = value
        yield joined


def write_table(
    records: Iterable[Mapping[str, Any]],
    path: Path,
    reader: Reader,
    source: Path,
    examples: Iterable[Any] | None = None,
) -> Sequence[Record]:
    """Write a table of input rows with their predictions, in the format given by the suffix of `path`.

    Args:
        records: the predictions.
        path: the new file.
        reader: the reader of the input.
        source: the input; if it is not a table, only the predictions are written.
        examples: the examples of the predictions; None for all rows.

    Returns:
        The rows, read from the file as needed.

    Raises:
        StorageError: the file cannot be written, or palm may not replace it.
    """
    names = list(dict.fromkeys(chain.from_iterable(reader.rows_of(source))))
    table = reader.rows_of(source, examples)
    rows = joined_rows(table, records, names) if names else map(task_cells, records)
    make_folder(path.parent)
    write = _WRITE.get(path.suffix.lower())
    if write is None:
        return write_records(rows, path.parent, path.name, kind=KIND)
    with write_atomically(path, kind=KIND) as file:
        first = list(islice(rows, BATCH))
        columns = list(dict.fromkeys(chain(names, *first)))
        made = _uniform(chain(first, rows), columns, path)
        return SavedTable(path, write(file, made, columns, _schemas(reader, source, first, names)))


def _uniform(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], path: Path
) -> Iterator[dict[str, Any]]:
    for row in rows:
        if strange := row.keys() - {*columns}:
            raise StorageError(f"{path}: only some rows have {', '.join(strange)}; write .jsonl instead")
        yield {name: row.get(name) for name in columns}


class SavedTable(SavedRecords):
    """A sequence of the rows of a table, which stay on disk."""

    def _read(self, places: range) -> list[Record]:
        rows = islice(self, max(places) + 1 if places else 0)
        found = {place: row for place, row in enumerate(rows) if place in places}
        return [found[place] for place in places]

    def __iter__(self) -> Iterator[Record]:
        return (dict(row.cells) for row in raw_rows(self.path))


def _write_csv(file: BinaryIO, rows: Iterable[Record], columns: Sequence[str], _: Iterable[Any]) -> int:
    text = TextIOWrapper(file, "utf-8", "backslashreplace", "")
    writer = csv.writer(text)
    writer.writerow(columns)
    count = sum(1 for row in rows if writer.writerow(map(_csv_cell, row.values())))
    text.detach()
    return count


def _csv_cell(value: Any) -> Any:
    is_plain = not isinstance(value, (list, dict, bool))
    return value if is_plain else json.dumps(value, ensure_ascii=False, default=str)


def _write_parquet(file: BinaryIO, rows: Iterable[Record], _: Sequence[str], schemas: Iterable[Any]) -> int:
    try:
        from pyarrow import ArrowException, Table, unify_schemas
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise StorageError("Parquet files need pyarrow: pip install 'palm-torch[parquet]'") from None
    count = 0
    try:
        schema = unify_schemas([*schemas], promote_options="permissive").remove_metadata()
        with ParquetWriter(file, schema) as writer:
            for batch in chunks_of(rows, BATCH):
                writer.write_table(Table.from_pylist(batch, schema))
                count += len(batch)
    except (ArrowException, OverflowError, UnicodeError) as error:
        raise StorageError(f"the rows do not fit one Parquet schema ({error}); write .jsonl") from error
    return count


def _schemas(reader: Reader, source: Path, first: Sequence[Record], names: Sequence[str]) -> Iterator[Any]:
    """The schemas of the input's files, or else of all its rows, and of the first predictions."""
    from pyarrow import Table

    known = arrow_schemas(source) if names else []
    yield from known
    for batch in chunks_of(() if known else reader.rows_of(source), BATCH):
        yield Table.from_pylist([{name: row.get(name) for name in names} for row in batch]).schema
    task = dict.fromkeys(name for row in first for name in row if name not in names)
    yield Table.from_pylist([{name: row.get(name) for name in task} for row in first]).schema


_WRITE: dict[str, Callable[[BinaryIO, Iterable[Record], Sequence[str], Iterable[Any]], int]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
