"""Prediction files and tables: written record by record, replaced atomically, and read lazily."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from itertools import chain, islice, zip_longest
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeAlias, overload

import numpy as np

from palm.core.errors import StorageError
from palm.core.io import make_folder, wrap_read_errors, write_atomically
from palm.reader.rows import BadRow
from palm.reader.tables.reading import raw_rows, usable

if TYPE_CHECKING:
    from palm.reader.base import Reader

Record: TypeAlias = dict[str, Any]
"""One prediction as the user sees it; JSON-serializable."""

Predictions: TypeAlias = Sequence[Record] | Mapping[str, str]
"""All predictions of a file: records, which stay on disk, or question id -> answer."""

PREDICTION_FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")
ANSWER_FIELDS = ("text", "nbest", "null_odds")


class SavedRecords(Sequence[Record]):
    """A sequence of the records in a file, which stay on disk; an index reads the file up to it.

    Args:
        path: the file.
        count: the number of records.
        read: yields the records of the file.
    """

    def __init__(self, path: Path, count: int, read: Callable[[Path], Iterator[Record]]) -> None:
        self.path = path
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        wanted = range(self._count)[index]
        places = range(wanted, wanted + 1) if isinstance(wanted, int) else wanted
        rows = enumerate(islice(self, max(places, default=-1) + 1))
        found = {place: row for place, row in rows if place in places}
        records = [found[place] for place in places]
        return records[0] if isinstance(wanted, int) else records

    def __iter__(self) -> Iterator[Record]:
        return self._read(self.path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SavedRecords({str(self.path)!r}, {len(self)} records)"


def read_records(path: Path) -> Iterator[Record]:
    """The records of a JSON lines file."""
    with wrap_read_errors(path), path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def json_value(value: Any) -> Any:
    """Return a value that `json.dumps` does not know: NumPy's as Python's, and others as text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def write_records(records: Iterable[Record], directory: Path, name: str = "predictions.json") -> SavedRecords:
    """Write a JSON lines file into `directory`, one object for each record.

    Raises:
        StorageError: the directory cannot be written to.
    """
    count = 0
    path = directory / name
    with _new_file(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, default=json_value) + "\n")
            count += 1
    return SavedRecords(path, count, read_records)


def write_answers(records: Iterable[Record], directory: Path) -> dict[str, str]:
    """Write `predictions.json` (id -> text) and `nbest_predictions.json` (id -> answers) into `directory`.

    If the records have `null_odds`, `null_odds.json` (id -> number) is written too.

    Args:
        records: with `id`, `text` and `nbest`, and optionally `null_odds`.
        directory: created if it does not exist.

    Raises:
        StorageError: the directory cannot be written to.
    """
    places = {field: directory / name for field, name in zip(ANSWER_FIELDS, PREDICTION_FILES, strict=True)}
    with ExitStack() as files:
        add = {field: files.enter_context(_new_object(places[field])) for field in ("text", "nbest")}
        for record in records:
            if "null_odds" in record and "null_odds" not in add:
                add["null_odds"] = files.enter_context(_new_object(places["null_odds"], end="\n}"))
            for field in add.keys() & record.keys():
                add[field](record["id"], record[field])
    with wrap_read_errors(places["text"]):
        return {**json.loads(places["text"].read_bytes())}


@contextmanager
def _new_object(path: Path, end: str = "\n}\n") -> Iterator[Callable[[str, Any], None]]:
    """A function that adds entries to a JSON object in a new file, formatted like `json.dump(indent=4)`."""
    with _new_file(path) as file:
        opening = "{\n    "

        def add(name: str, value: Any) -> None:
            nonlocal opening
            text = json.dumps(value, ensure_ascii=False, indent=4).replace("\n", "\n    ")
            file.write(f"{opening}{json.dumps(name, ensure_ascii=False)}: {text}")
            opening = ",\n    "

        yield add
        file.write("{}\n" if opening.startswith("{") else end)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """A text file that replaces `path` once it is complete."""
    make_folder(path.parent)
    # A lone surrogate cannot be encoded in UTF-8, so it is written as a JSON escape.
    with write_atomically(path) as opened:
        file = TextIOWrapper(opened, "utf-8", "backslashreplace", "\n")
        yield file
        file.detach()


LEFT_OUT = ("index", "logits", "probs", "nbest", "start", "label_name", "label_names")
"""Fields of a record that a table shows in another form, or not at all."""

BATCH = 1024
"""Rows whose predictions determine the columns of a table."""

OTHER_FILES = (
    *(".json", ".tsv", ".txt", ".xlsx", ".xls", ".pdf", ".html", ".parquet", ".arrow", ".gz", ".zip"),
)
"""Suffixes of file names that are not meant as names of folders."""


def is_table_name(path: Path) -> bool:
    """Check whether predictions under this name are a table rather than a folder of files."""
    return path.suffix.lower() in (".jsonl", ".csv")


def check_output_name(path: Path) -> None:
    """Refuse a file format that palm does not write, instead of creating a folder of that name.

    Raises:
        StorageError: the name has such a suffix.
    """
    if path.suffix.lower() in OTHER_FILES and not path.is_dir():
        raise StorageError(f"{path}: expected a folder, or a name that ends in .jsonl or .csv")


def task_cells(record: Mapping[str, Any]) -> Record:
    """The columns of a prediction: `label` (its name, if it has one), `probability`, and the other fields."""
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


def write_table(
    records: Iterable[Mapping[str, Any]],
    path: Path,
    reader: Reader,
    source: Path,
    errors: Sequence[str] | None = None,
) -> Sequence[Record]:
    """Write a table of input rows with their predictions, in the format given by the suffix of `path`.

    A task column whose name the input has, too, becomes `predicted_…`.

    Args:
        records: the predictions.
        path: the new file.
        reader: the reader of the input.
        source: the input; if it is not a table, only the predictions are written.
        errors: the columns for the problems of rows that could not be predicted; None for `error` if there
            are such rows.

    Returns:
        The rows, read from the file as needed.

    Raises:
        StorageError: the file cannot be written, or there are more rows or fewer than predictions.
    """
    names = list(dict.fromkeys(chain.from_iterable(reader.rows_of(source))))
    joined = _joined(reader.rows_of(source), records, names, path) if names else map(task_cells, records)
    make_folder(path.parent)
    if path.suffix.lower() == ".jsonl":
        return write_records(joined, path.parent, path.name)
    first = list(islice(joined, BATCH))
    if errors is None and names:
        is_bad = (isinstance(example, BadRow) for example in reader.read(source, with_targets=False))
        errors = ["error"] if any(is_bad) else []
    # The first row with an error may be a later one.
    columns = list(dict.fromkeys(chain(names, *first, errors or ())))
    with write_atomically(path) as file:
        count = _write_csv(file, _uniform(chain(first, joined), columns, path), columns)
    return SavedRecords(path, count, _rows_in)


def _rows_in(table: Path) -> Iterator[Record]:
    return (dict(usable(row).cells) for row in raw_rows(table))


def _joined(
    rows: Iterable[Mapping[str, Any]],
    records: Iterable[Mapping[str, Any]],
    names: Collection[str],
    path: Path,
) -> Iterator[Record]:
    for row, record in zip_longest(rows, records):
        if row is None or record is None:
            raise StorageError(f"{path}: the input has not one row per prediction; write to a folder instead")
        joined = dict(row)
        for name, value in task_cells(record).items():
            if name != "id" or name not in names:
                joined[free_name(name, names)] = value
        yield joined


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name of a task's column, if some are taken by those of the input."""
    while name in taken:
        name = f"predicted_{name}"
    return name


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
