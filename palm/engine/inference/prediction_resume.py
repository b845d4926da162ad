"""What a prediction has finished so far, on disk, so that a stopped one continues where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from palm.core.errors import DataError, StorageError
from palm.core.files.fs import wrap_write_errors
from palm.core.logging import logger

NAME = ".predictions.resume"


class Journal:
    """The records of whole chunks of examples, one chunk a line after a line about what is predicted.

    A line that a dying process has left half written is passed over.

    Args:
        directory: where the predictions go.
        about: gives whatever the predictions depend on, JSON-ready; not asked for a file of one chunk.
    """

    def __init__(self, directory: Path, about: Callable[[], dict[str, Any]]) -> None:
        self.path = directory / NAME
        self._about = cache(about)
        self._file: IO[str] | None = None
        self._end = 0
        self.num_examples = 0

    def resume(self) -> None:
        """Take over what a stopped prediction has left; without that, begin from the beginning.

        Raises:
            StorageError: it predicted something else; says what.
        """
        if not self.path.is_file():
            logger.info("%s: no stopped prediction; starting from the beginning", self.path.parent)
            return
        lines = self._lines()
        found = next(lines, (0, None))[1]
        if not isinstance(found, dict):
            return
        changed = [name for name, value in self._about().items() if found.get(name) != value]
        if changed:
            raise StorageError(
                f"{self.path.parent}: the stopped prediction had another {', '.join(changed)}; predict "
                "without --resume to begin anew"
            )
        for end, records in lines:
            self.num_examples += len(records)
            self._end = end
        logger.info("%s: going on after %d examples", self.path.parent, self.num_examples)

    def chunks(self) -> Iterator[list[Any]]:
        """The records that were taken over, a chunk at a time."""
        if self._end:
            lines = self._lines()
            next(lines)
            for end, records in lines:
                yield records
                if end == self._end:
                    return

    def kept(self, steps: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """The steps of `InferenceModel.steps`; a chunk's records are kept when the next chunk is begun."""
        last: list[Any] = []
        for records in steps:
            if last:
                self.append(last)
            last = records
            yield records

    def append(self, records: Sequence[Any]) -> None:
        """Keep the records of the next chunk.

        Raises:
            StorageError: the directory cannot be written.
        """
        line = json.dumps(records)
        with wrap_write_errors(self.path):
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = self.path.open("r+" if self._end else "w", encoding="ascii")
                if self._end:
                    file.seek(self._end)
                    file.truncate()
                else:
                    file.write(json.dumps(self._about()) + "\n")
                self._file = file
            self._file.write(line + "\n")
            self._file.flush()
            self.num_examples += len(records)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Nothing is left of it when the predictions are written, or when the data must change first."""
        with suppress(OSError):  # a full or read-only disk has been told of already
            if self._file is not None:
                self._file.close()
            if kind is None or issubclass(kind, DataError):
                self.path.unlink(missing_ok=True)
        if kind is not None and self.path.is_file():
            logger.warning(
                "%s: %d examples are predicted; the same once more with --resume (in Python: resume=True) "
                "goes on from there",
                *(self.path.parent, self.num_examples),
            )

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """The whole lines, each with the place where it ends."""
        with self.path.open("rb") as file:
            for line in file:
                try:
                    if not line.endswith(b"\n"):
                        return
                    value = json.loads(line)
                except ValueError:
                    return
                yield file.tell(), value
