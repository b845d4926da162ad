"""Predictions as a table: the columns of the input, and then those of the task, in the input's order."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from palm.core.errors import StorageError
from palm.core.files.door import make_folder
from palm.core.files.fs import write_atomically
from palm.reader.predictions import Record, SavedRecords, write_records
from palm.reader.tables.reading import raw_rows

LEFT_OUT = ("index", "logits", "probs", "nbest", "label_name", "label_names")
"""Fields of a record that a table shows in other words, or not."""

BATCH = 1024


def is_table_name(path: Path) -> bool:
    """Tell whether predictions under this name are a table, and not a folder of files."""
    return path.suffix.lower() in (".jsonl", *_WRITE)


def task_cells(record: Record) -> Record:
    """The columns of a prediction: `label` (its name, where it has one), `probability`, and the rest."""
    cells = {name: value for name, value in record.items() if name not in LEFT_OUT}
    if "label_name" in record:
        cells["label"] = record["label_name"]
    if (probs := record.get("probs")) is not None:
        cells["probability"] = max(probs) if isinstance(probs, list) else probs
        if "labels" in record:
            cells["labels"] = record.get("label_names", record["labels"])
            cells["probability"] = [probs[label] for label in record["labels"]]
    if record.get("nbest"):
        cells["probability"] = record["nbest"][0].get("probability")
    return cells


def joined_rows(rows: Iterable[Mapping[str, Any]] | None, records: Iterable[Record]) -> Iterator[Record]:
    """Each row with its prediction; a column of both is the row's, and `predicted_…` is the task's.

    Args:
        rows: of the input; None where it is no table.
        records: as many.
    """
    if rows is None:
        yield from map(task_cells, records)
        return
    for row, record in zip(rows, records, strict=True):
        cells = task_cells(record)
        if "id" in row:
            cells.pop("id", None)
        yield {**row, **{f"predicted_{name}" if name in row else name: cells[name] for name in cells}}


def write_table(rows: Iterable[Record], path: Path) -> Sequence[Record]:
    """Write rows as the format that a file's name tells; the returned rows are read from it.

    Raises:
        StorageError: the file cannot be written, or is not palm's to replace.
    """
    write = _WRITE.get(path.suffix.lower())
    if write is None:
        return write_records(rows, path.parent, path.name)
    make_folder(path.parent)
    # The columns, and their types, are known after the last row.
    with TemporaryDirectory(dir=path.parent, prefix=".palm-") as folder:
        saved = write_records(rows, Path(folder))
        with write_atomically(path) as file:
            write(file, list(dict.fromkeys(chain.from_iterable(saved))), saved)
        return SavedTable(path, len(saved))


class SavedTable(SavedRecords):
    """The rows of a table as a list that stays on disk."""

    def _read(self, places: range) -> list[Record]:
        rows = islice(self, max(places) + 1 if places else 0)
        found = {place: row for place, row in enumerate(rows) if place in places}
        return [found[place] for place in places]

    def __iter__(self) -> Iterator[Record]:
        return (dict(row.cells) for row in raw_rows(self.path))


def _write_csv(file: BinaryIO, names: Sequence[str], rows: Iterable[Record]) -> None:
    text = TextIOWrapper(file, "utf-8", "backslashreplace", "")
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_csv_cell(row.get(name)) for name in names] for row in rows)
    text.detach()


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict, bool)) else value


def _write_parquet(file: BinaryIO, names: Sequence[str], rows: Sequence[Record]) -> None:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise StorageError("Parquet files need pyarrow: pip install 'palm-torch[parquet]'") from None

    def batches() -> Iterator[Any]:
        each = iter(rows)
        while part := list(islice(each, BATCH)):
            yield pyarrow.table({name: [row.get(name) for row in part] for name in names})

    try:
        schema = None
        for batch in batches():
            known = [batch.schema] if schema is None else [schema, batch.schema]
            schema = pyarrow.unify_schemas(known, promote_options="permissive")
        with ParquetWriter(file, schema or pyarrow.schema([])) as writer:
            for batch in batches():
                writer.write_table(batch.cast(schema))
    except pyarrow.ArrowException as error:
        raise StorageError(f"the rows have no common types as Parquet ({error}); write .jsonl") from error


_WRITE: dict[str, Callable[[BinaryIO, Sequence[str], Sequence[Record]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
