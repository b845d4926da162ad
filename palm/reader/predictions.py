"""Predictions on disk: written one by one, complete or not at all, and read back when asked for."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias, overload

from palm.core.disk import writing

Record: TypeAlias = dict[str, Any]
"""One prediction as a user sees it: JSON-ready."""

Predictions: TypeAlias = Sequence[Record] | Mapping[str, str]
"""All predictions of a file, read from disk on use."""


class SavedRecords(Sequence[Record]):
    """The records of a JSON lines file as a list that stays on disk.

    Args:
        path: the file.
        offsets: where every line begins, in bytes.
    """

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        self.path = path
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        with self.path.open("rb") as file:
            if isinstance(index, int):
                return _line_at(file, self._offsets[index])
            return [_line_at(file, offset) for offset in self._offsets[index]]

    def __iter__(self) -> Iterator[Record]:
        with self.path.open("rb") as file:
            for line in file:
                yield json.loads(line)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SavedRecords({str(self.path)!r}, {len(self)} records)"


class SavedAnswers(Mapping[str, str]):
    """Question id -> answer, from a `predictions.json` that is read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded: dict[str, str] | None = None

    @property
    def _answers(self) -> dict[str, str]:
        if self._loaded is None:
            self._loaded = json.loads(self.path.read_text(encoding="utf-8"))
        return self._loaded

    def __getitem__(self, question_id: str) -> str:
        return self._answers[question_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"SavedAnswers({str(self.path)!r})"


def write_records(records: Iterable[Record], directory: Path) -> SavedRecords:
    """Write `predictions.json` into `directory`, one JSON object a line.

    Raises:
        StorageError: the directory cannot be written.
    """
    offsets = array("q")
    position = 0
    path = directory / "predictions.json"
    with _new_file(path) as file:
        for record in records:
            line = json.dumps(record, ensure_ascii=False) + "\n"
            file.write(line)
            offsets.append(position)
            position += len(line.encode("utf-8", "backslashreplace"))
    return SavedRecords(path, offsets)


def write_answers(records: Iterable[Record], directory: Path) -> SavedAnswers:
    """Write `predictions.json` (id -> text) and `nbest_predictions.json` (id -> answers) into `directory`.

    Beside them `null_odds.json` (id -> number) if the records have such a number.

    Args:
        records: with `id`, `text` and `nbest`, and perhaps `null_odds`.
        directory: is made if it is missing.

    Raises:
        StorageError: the directory cannot be written.
    """
    path = directory / "predictions.json"
    odds: dict[str, float] = {}
    with _new_file(path) as texts, _new_file(directory / "nbest_predictions.json") as nbests:
        opening = "{\n    "
        for record in records:
            name = json.dumps(record["id"], ensure_ascii=False)
            nbest = json.dumps(record["nbest"], ensure_ascii=False, indent=4).replace("\n", "\n    ")
            texts.write(f"{opening}{name}: {json.dumps(record['text'], ensure_ascii=False)}")
            nbests.write(f"{opening}{name}: {nbest}")
            opening = ",\n    "
            if "null_odds" in record:
                odds[record["id"]] = record["null_odds"]
        closing = "{}\n" if opening.startswith("{") else "\n}\n"
        texts.write(closing)
        nbests.write(closing)
    if odds:
        with _new_file(directory / "null_odds.json") as file:
            json.dump(odds, file, ensure_ascii=False, indent=4)
    return SavedAnswers(path)


def _line_at(file: BinaryIO, offset: int) -> Record:
    file.seek(offset)
    record: Record = json.loads(file.readline())
    return record


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name when it is complete."""
    partial = path.with_name(path.name + ".partial")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half of a surrogate pair, which no UTF-8 file can hold, is written as JSON's own escape.
            with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                yield file
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()
