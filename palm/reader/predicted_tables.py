"""Predictions as a table: the columns of the input followed by those of the task, in the input's order."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from palm.core.errors import StorageError
from palm.core.io import make_folder, write_atomically
from palm.reader.base import Reader
from palm.reader.cache import chunks_of
from palm.reader.predictions import Record, SavedRecords, write_records
from palm.reader.tables.reading import arrow_schemas, raw_rows

LEFT_OUT = ("index", "logits", "probs", "nbest", "label_name", "label_names")
"""Fields of a record that a table shows in another form, or not at all."""

BATCH = 1024
"""Rows in memory at a time; the first batch determines the types of columns."""

OTHER_FILES = (".json", ".tsv", ".txt", ".xlsx", ".xls", ".pdf", ".html", ".arrow", ".gz", ".zip")
"""Suffixes of file names that are not meant as names of folders."""


def is_table_name(path: Path) -> bool:
    """Check whether predictions under this name are a table rather than a folder of files."""
    return path.suffix.lower() in (".jsonl", ".csv", ".parquet")


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
    head = _typical(reader.rows_of(source))
    names = list(dict.fromkeys(chain.from_iterable(head)))
    rows = (
        joined_rows(reader.rows_of(source, examples), records, names) if names else map(task_cells, records)
    )
    make_folder(path.parent)
    if path.suffix.lower() == ".jsonl":
        return write_records(rows, path.parent, path.name)
    first = list(islice(rows, BATCH))
    columns = list(dict.fromkeys(chain(names, *first)))
    made = _uniform(chain(first, rows), columns, path)
    with write_atomically(path) as file:
        if path.suffix.lower() == ".csv":
            count = _write_csv(file, made, columns)
        else:
            own = [name for name in columns if name not in names]
            count = _write_parquet(file, made, [_only(head, names), _only(first, own)], source)
    return SavedRecords(path, count, lambda path: (dict(row.cells) for row in raw_rows(path)))


def _typical(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first rows, and later ones with the first value of a column."""
    found: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    for row in rows:
        new = {name for name, value in row.items() if value is not None} - seen
        if new or len(found) < BATCH:
            found.append(row)
        seen |= new
    return found


def _only(rows: Iterable[Mapping[str, Any]], names: Collection[str]) -> list[Record]:
    return [{name: row.get(name) for name in names} for row in rows]


def _uniform(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], path: Path
) -> Iterator[dict[str, Any]]:
    for row in rows:
        if strange := row.keys() - {*columns}:
            raise StorageError(f"{path}: only some rows have {', '.join(strange)}; write .jsonl instead")
        yield {name: row.get(name) for name in columns}


def _write_csv(file: BinaryIO, rows: Iterable[Record], columns: Sequence[str]) -> int:
    text = TextIOWrapper(file, "utf-8", "backslashreplace", "")
    writer = csv.writer(text)
    writer.writerow(columns)
    count = sum(1 for row in rows if writer.writerow(map(_csv_cell, row.values())))
    text.detach()
    return count


def _csv_cell(value: Any) -> Any:
    is_plain = not isinstance(value, (list, dict, bool))
    return value if is_plain else json.dumps(value, ensure_ascii=False, default=str)


def _write_parquet(
    file: BinaryIO, rows: Iterable[Record], samples: Sequence[list[Record]], source: Path
) -> int:
    """Write rows with the types of the input's files and of samples of the input and of the task."""
    try:
        from pyarrow import ArrowException, Table, unify_schemas
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise StorageError("Parquet files need pyarrow: pip install 'palm-torch[parquet]'") from None
    count = 0
    try:
        own, task = (Table.from_pylist(sample).schema for sample in samples)
        known = (arrow_schemas(source) if len(own) else []) or [own]
        schema = unify_schemas([*known, task], promote_options="permissive").remove_metadata()
        with ParquetWriter(file, schema) as writer:
            for batch in chunks_of(rows, BATCH):
                writer.write_table(Table.from_pylist(batch, schema))
                count += len(batch)
    except (ArrowException, OverflowError, UnicodeError) as error:
        raise StorageError(f"the rows do not fit one Parquet schema ({error}); write .jsonl") from error
    return count
