"""Predictions on disk: written one by one, complete or not at all, and read back when asked for."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias, overload

from palm.core.files.fs import wrap_write_errors, write_atomically

Record: TypeAlias = dict[str, Any]
"""One prediction as a user sees it: JSON-ready."""

Predictions: TypeAlias = Sequence[Record] | Mapping[str, str]
"""All predictions of a file, read from disk on use."""


STRIDE = 256
"""Lines from one place that is remembered to the next: those of ten million lines take 312 KiB."""


class SavedRecords(Sequence[Record]):
    """The records of a JSON lines file as a list that stays on disk.

    Args:
        path: the file.
        count: its lines.
        offsets: where every `STRIDE`-th line begins, in bytes.
    """

    def __init__(self, path: Path, count: int, offsets: Sequence[int]) -> None:
        self.path = path
        self._count, self._offsets = count, offsets

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            places = range(self._count)[index]
            found = dict(self._read(sorted(places)))
            return [found[place] for place in places]
        return next(self._read([range(self._count)[index]]))[1]

    def _read(self, places: Sequence[int]) -> Iterator[tuple[int, Record]]:
        """The records at some places, which ascend."""
        at = -1
        with self.path.open("rb") as file:
            for place in places:
                if at < 0 or place - at > STRIDE:
                    at = place - place % STRIDE
                    file.seek(self._offsets[at // STRIDE])
                for _ in range(place - at):
                    file.readline()
                at = place + 1
                yield place, json.loads(file.readline())

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
    position = count = 0
    path = directory / "predictions.json"
    with _new_file(path) as file:
        for record in records:
            line = json.dumps(record, ensure_ascii=False) + "\n"
            file.write(line)
            if count % STRIDE == 0:
                offsets.append(position)
            count += 1
            position += len(line.encode("utf-8", "backslashreplace"))
    return SavedRecords(path, count, offsets)


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
    with ExitStack() as files:
        texts = files.enter_context(_new_file(path))
        nbests = files.enter_context(_new_file(directory / "nbest_predictions.json"))
        odds: TextIO | None = None
        opening = odds_opening = "{\n    "
        for record in records:
            name = json.dumps(record["id"], ensure_ascii=False)
            nbest = json.dumps(record["nbest"], ensure_ascii=False, indent=4).replace("\n", "\n    ")
            texts.write(f"{opening}{name}: {json.dumps(record['text'], ensure_ascii=False)}")
            nbests.write(f"{opening}{name}: {nbest}")
            opening = ",\n    "
            if "null_odds" in record:
                if odds is None:
                    odds = files.enter_context(_new_file(directory / "null_odds.json"))
                odds.write(f"{odds_opening}{name}: {json.dumps(record['null_odds'])}")
                odds_opening = ",\n    "
        closing = "{}\n" if opening.startswith("{") else "\n}\n"
        texts.write(closing)
        nbests.write(closing)
        if odds is not None:
            odds.write("\n}")
    return SavedAnswers(path)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name when it is complete."""
    with wrap_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Half of a surrogate pair, which no UTF-8 file can hold, is written as JSON's own escape.
    with (
        write_atomically(path) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        yield file
