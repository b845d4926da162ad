"""A log of finished predictions on disk, so that a stopped prediction can be resumed."""

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

PREDICTION_LOG = ".predictions.resume"


class PredictionLog:
    """The records of whole chunks of examples, one chunk a line, after a line about the prediction.

    A line that a dying process has left half written is skipped.

    Args:
        directory: where the predictions go.
        about: returns everything that the predictions depend on, JSON-ready; not called for a file of one
            chunk.
    """

    def __init__(self, directory: Path, about: Callable[[], dict[str, Any]]) -> None:
        self.path = directory / PREDICTION_LOG
        self._about = cache(about)
        self._file: IO[str] | None = None
        self._end = 0
        self.num_examples = 0

    def resume(self) -> None:
        """Take over the records of a stopped prediction, if there is one.

        Raises:
            StorageError: it predicted something else; says what.
        """
        if not self.path.is_file():
            logger.info("%s: no stopped prediction; starting from the beginning", self.path.parent)
            return
        lines = self._lines()
        _, stopped = next(lines, (0, None))
        if not isinstance(stopped, dict):
            return
        changed = [name for name, value in self._about().items() if stopped.get(name) != value]
        if changed:
            raise StorageError(
                f"{self.path.parent}: the stopped prediction had another {', '.join(changed)}; predict "
                "without --resume to start again"
            )
        for end, records in lines:
            self.num_examples += len(records)
            self._end = end
        logger.info("%s: resuming after %d examples", self.path.parent, self.num_examples)

    def chunks(self) -> Iterator[list[Any]]:
        """The records that were taken over, a chunk at a time."""
        if self._end:
            lines = self._lines()
            next(lines)
            for end, records in lines:
                yield records
                if end == self._end:
                    return

    def logged(self, steps: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Yield the steps of `InferenceModel.steps`; a chunk is logged when the next one begins."""
        last: list[Any] = []
        for records in steps:
            if last:
                self.append(last)
            last = records
            yield records

    def append(self, records: Sequence[Any]) -> None:
        """Log the records of the next chunk.

        Raises:
            StorageError: the directory cannot be written.
        """
        with wrap_write_errors(self.path):
            if self._file is None:
                self._file = self._opened()
            self._file.write(json.dumps(records) + "\n")
            self._file.flush()
        self.num_examples += len(records)

    def _opened(self) -> IO[str]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._end:
            file = self.path.open("w", encoding="ascii")
            file.write(json.dumps(self._about()) + "\n")
            return file
        file = self.path.open("r+", encoding="ascii")
        file.seek(self._end)
        file.truncate()
        return file

    def __enter__(self) -> PredictionLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete the log when the predictions are written, or when the data must change first."""
        with suppress(OSError):  # a full or read-only disk was reported already
            if self._file is not None:
                self._file.close()
            if kind is None or issubclass(kind, DataError):
                self.path.unlink(missing_ok=True)
        if kind is not None and self.path.is_file():
            logger.warning(
                "%s: stopped after %d examples; resume with --resume (in Python: resume=True)",
                self.path.parent,
                self.num_examples,
            )

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the whole lines, each with its end in the file."""
        with self.path.open("rb") as file:
            for line in file:
                try:
                    value = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    return
                if value is None:
                    return
                yield file.tell(), value
