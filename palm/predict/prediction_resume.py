"""A log of finished predictions on disk, so that a stopped prediction can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from palm.core.errors import DataError, StorageError
from palm.core.files.door import make_folder, open_to_append
from palm.core.files.fs import check_replaceable, is_written, remove_written, write_text
from palm.core.files.locking import locked
from palm.core.files.write_errors import wrap_write_errors
from palm.core.logging import logger
from palm.parallel.group import is_main_process

PREDICTION_LOG = ".predictions.resume"
PREDICTION_LOCK = ".predictions.lock"


class PredictionLog:
    """A file with the records of complete chunks of examples, one chunk per line, after a header line.

    A line that was only partly written when a process died is skipped.

    Args:
        directory: the output directory of the predictions.
        about: returns everything that the predictions depend on, JSON-ready; not called if the file to
            predict is a single chunk.
    """

    def __init__(self, directory: Path, about: Callable[[], dict[str, Any]]) -> None:
        self.path = directory / PREDICTION_LOG
        self._about = cache(about)
        self._file: IO[bytes] | None = None
        self._lock = ExitStack()
        self._end = 0
        self._digest = ""
        self.num_examples = 0

    def resume(self) -> None:
        """Load the records of a stopped prediction, if there is one.

        Raises:
            StorageError: the stopped prediction had other settings; they are named.
        """
        if not self.path.is_file():
            logger.info("%s: no stopped prediction; starting from the beginning", self.path.parent)
            return
        check_replaceable(self.path)
        lines = self._lines()
        _, stopped = next(lines, (0, None))
        if not isinstance(stopped, dict):
            return
        if changed := [name for name, value in self._about().items() if stopped.get(name) != value]:
            raise StorageError(
                f"{self.path.parent}: the stopped prediction differs in {', '.join(changed)}; predict "
                "without --resume to start from the beginning"
            )
        for self._end, records in lines:
            self.num_examples += len(records)
        logger.info("%s: resuming after %d examples", self.path.parent, self.num_examples)

    def chunks(self) -> Iterator[list[Any]]:
        """Yield the records of the stopped prediction, one chunk at a time."""
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
            self._file.write(self._line(records))
            self._file.flush()
        self.num_examples += len(records)

    def _opened(self) -> IO[bytes]:
        if not self._end:
            self._digest = ""
            if self.path.exists():
                logger.warning("%s: the log of a stopped prediction is replaced", self.path.parent)
            write_text(self.path, self._line(self._about()).decode(), grows=True)
            return open_to_append(self.path)
        file = open_to_append(self.path)
        # Cut off a line that was only partly written when a process died.
        file.truncate(self._end)
        return file

    def _line(self, value: Any) -> bytes:
        """Format a line: a checksum and the value."""
        text = json.dumps(value)
        # The checksum also covers all earlier lines, so a moved or missing line is detected.
        self._digest = chained(self._digest, text.encode())
        return f"{self._digest} {text}\n".encode()

    def __enter__(self) -> PredictionLog:
        if not is_main_process():
            return self
        folder = self.path.parent
        make_folder(folder)
        taken = f"{folder} is in use by another prediction; wait until it ends, or give another folder"
        self._lock.enter_context(locked(folder / PREDICTION_LOCK, taken=lambda: taken))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete the log after success, and after an error in the data, which must be corrected first."""
        with self._lock, suppress(OSError):  # a full or read-only disk has been reported already
            if self._file is not None:
                self._file.close()
            # Without a line of this prediction, the log is that of another one, to another table.
            if self.num_examples and (kind is None or issubclass(kind, DataError)):
                remove_written(self.path)
        if kind is not None and is_written(self.path):
            logger.warning(
                "%s: stopped after %d examples; resume with --resume (in Python: resume=True)",
                self.path.parent,
                self.num_examples,
            )

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the complete lines, each with its end position in the file."""
        digest = ""
        with self.path.open("rb") as file:
            for line in file:
                checksum, _, text = line.partition(b" ")
                digest = chained(digest, text.removesuffix(b"\n"))
                if checksum != digest.encode() or not line.endswith(b"\n"):
                    return
                self._digest = digest
                yield file.tell(), json.loads(text)


def chained(before: str, text: bytes) -> str:
    """Return the checksum of a line and all earlier lines."""
    return hashlib.sha256(before.encode() + text).hexdigest()[:16]
