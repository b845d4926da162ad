"""The log of a prediction, from which it continues after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from palm.core.errors import DataError, StorageError
from palm.core.io import locked, wrap_write_errors
from palm.core.logging import logger
from palm.reader import Record
from palm.reader.predictions import Predictions, SavedRecords, json_value, read_records

PREDICTION_LOG = ".predictions.resume"


class PredictionLog:
    """A file with one finished record per line, after a line with all that the records depend on.

    Records are appended in chunks, because the rows of a chunk are sorted into batches: a resumed prediction
    begins at a chunk.

    Args:
        folder: the folder of the file.
        about: returns all that the records depend on, JSON-ready: name in messages -> value.
        size: number of records in a chunk.

    Attributes:
        num_records: number of records in the log.
    """

    def __init__(self, folder: Path, about: Callable[[], Mapping[str, Any]], size: int) -> None:
        self.path = folder / PREDICTION_LOG
        self.size = size
        self.num_records = 0
        self._about = cache(about)
        self._file: IO[bytes] | None = None
        self._lock = ExitStack()

    def records(self) -> SavedRecords:
        """Return the records, which stay in the file."""
        self._write(())
        return SavedRecords(self.path, self.num_records, _records_of)

    def finish(self, write: Callable[[Iterable[Record]], Predictions]) -> Predictions:
        """Write the predictions by a function that consumes all records in order, and remove the log."""
        written = write(self.records())
        self.path.unlink()
        return written

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
        about = self._about()
        if changed := [name for name, value in about.items() if stopped.get(name) != value]:
            raise StorageError(
                f"{self.path.parent}: the stopped prediction differs in {', '.join(changed)}; predict "
                "without --resume to start from the beginning"
            )
        self.num_records = sum(1 for _ in lines) // self.size * self.size
        logger.info("%s: resuming after %d examples", self.path.parent, self.num_records)

    def append(self, records: Sequence[Record]) -> None:
        """Log the records of a whole chunk, or of the last one."""
        self._write(map(_line, records))
        self.num_records += len(records)

    def _write(self, lines: Iterable[bytes]) -> None:
        with wrap_write_errors(self.path):
            if self._file is None:
                self._file = self._opened()
            self._file.write(b"".join(lines))
            self._file.flush()

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
        self._lock.enter_context(locked(self.path.with_suffix(".lock"), taken=taken))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the log; delete it after an error in the data, which must be corrected first."""
        with self._lock, suppress(OSError):  # a full or read-only disk has been reported already
            if self._file is not None:
                self._file.close()
            # Without a record of this prediction, the log is that of another one.
            if self.num_records and kind is not None and issubclass(kind, DataError):
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


def _records_of(log: Path) -> Iterator[Record]:
    return islice(read_records(log), 1, None)


def _line(value: Any) -> bytes:
    return f"{json.dumps(value, default=json_value)}\n".encode()
