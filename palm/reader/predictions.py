"""Prediction files: written record by record, replaced atomically, and read lazily."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from io import TextIOWrapper
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any, TextIO, TypeAlias, overload

from palm.core.io import make_folder, wrap_read_errors, write_atomically

Record: TypeAlias = dict[str, Any]
"""One prediction as the user sees it; JSON-serializable."""

Predictions: TypeAlias = Sequence[Record] | Mapping[str, str]
"""All predictions of a file, read from disk lazily."""

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


class SavedAnswers(Mapping[str, str]):
    """Question id -> answer of a `predictions.json`, which is read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _answers(self) -> dict[str, str]:
        with wrap_read_errors(self.path):
            return {**json.loads(self.path.read_bytes())}

    def __getitem__(self, question_id: str) -> str:
        return self._answers[question_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"SavedAnswers({str(self.path)!r})"


def write_records(records: Iterable[Record], directory: Path, name: str = "predictions.json") -> SavedRecords:
    """Write a JSON lines file into `directory`, one object for each record.

    Raises:
        StorageError: the directory cannot be written to.
    """
    count = 0
    path = directory / name
    with _new_file(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
            count += 1
    return SavedRecords(path, count, read_records)


def write_answers(records: Iterable[Record], directory: Path) -> SavedAnswers:
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
    return SavedAnswers(places["text"])


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
