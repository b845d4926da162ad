"""A log of finished predictions on disk, so that a stopped prediction can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

from palm.core.errors import DataError, StorageError
from palm.core.io import locked, wrap_write_errors
from palm.core.logging import logger

PREDICTION_LOG = ".predictions.resume"
PREDICTION_LOCK = ".predictions.lock"


class PredictionLog:
    """A file with one finished record per line, after a line with all that the records depend on.

    Records are appended in chunks, because the rows of a chunk are sorted into batches: a resumed prediction
    begins at a chunk. A file of less than a chunk is never logged.

    Args:
        directory: the output directory of the predictions.
        about: returns everything that the predictions depend on, JSON-ready: name in messages -> value.
        size: number of records in a chunk.
    """

    def __init__(self, directory: Path, about: Callable[[], Mapping[str, Any]], size: int) -> None:
        self.path = directory / PREDICTION_LOG
        self.size = size
        self.num_records = 0
        self._about = about
        self._file: IO[bytes] | None = None
        self._lock = ExitStack()

    def resume(self) -> None:
        """Count the complete chunks of a stopped prediction, if there is one; its records are kept.

        Raises:
            StorageError: the stopped prediction had other settings; they are named.
        """
        lines = self._lines() if self.path.is_file() else iter(())
        stopped = next(lines, None)
        if not isinstance(stopped, dict):  # also of a process that was killed while it wrote the first line
            logger.info("%s: no stopped prediction; starting from the beginning", self.path.parent)
            return
        if changed := [name for name, value in self._about().items() if stopped.get(name) != value]:
            raise StorageError(
                f"{self.path.parent}: the stopped prediction differs in {', '.join(changed)}; predict "
                "without --resume to start from the beginning"
            )
        self.num_records = sum(1 for _ in lines) // self.size * self.size
        logger.info("%s: resuming after %d examples", self.path.parent, self.num_records)

    def completed(self, new: Iterator[Any]) -> Iterator[Any]:
        """Yield the records of the stopped prediction, then the new ones, which are logged as they come."""
        yield from islice(self._lines(), 1, 1 + self.num_records) if self.num_records else ()
        chunk: list[Any] = []
        for record in new:
            chunk.append(record)
            yield record
            if len(chunk) == self.size:
                self._append(chunk)
                chunk = []

    def _append(self, records: Sequence[Any]) -> None:
        with wrap_write_errors(self.path):
            if self._file is None:
                self._file = self._opened()
            self._file.write(b"".join(map(_line, records)))
            self._file.flush()
        self.num_records += len(records)

    def _opened(self) -> IO[bytes]:
        """Open the log after its last complete chunk."""
        if not self.num_records:
            if self.path.exists():
                logger.warning("%s: the log of a stopped prediction is replaced", self.path.parent)
            file = self.path.open("wb")
            file.write(_line(self._about()))
            return file
        with self.path.open("rb") as written:
            end = sum(map(len, islice(written, 1 + self.num_records)))
        file = self.path.open("ab")
        file.truncate(end)
        return file

    def __enter__(self) -> PredictionLog:
        folder = self.path.parent
        with wrap_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        taken = f"{folder} is in use by another prediction; wait until it ends, or give another folder"
        self._lock.enter_context(locked(folder / PREDICTION_LOCK, taken=taken))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete the log after success, and after an error in the data, which must be corrected first."""
        with self._lock, suppress(OSError):  # a full or read-only disk has been reported already
            if self._file is not None:
                self._file.close()
            # Without a record of this prediction, the log is that of another one, to another table.
            if self.num_records and (kind is None or issubclass(kind, DataError)):
                self.path.unlink()
        if kind is not None and self.num_records and self.path.exists():
            logger.warning(
                "%s: stopped after %d examples; resume with --resume (in Python: resume=True)",
                self.path.parent,
                self.num_records,
            )

    def _lines(self) -> Iterator[Any]:
        """Yield the values of the complete lines; a dying process may leave a part of one."""
        with self.path.open("rb") as file, suppress(ValueError):
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)


def _line(value: Any) -> bytes:
    return f"{json.dumps(value)}\n".encode()
