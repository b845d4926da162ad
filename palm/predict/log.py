"""Predictions on their way: the log of a stopped one, and the parts of one that several jobs make."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any

from palm.core.errors import ConfigError, DataError, StorageError
from palm.core.io import locked, wrap_write_errors
from palm.core.logging import logger
from palm.reader import Record
from palm.reader.predictions import Predictions, SavedRecords, read_records

PREDICTION_LOG = ".predictions.resume"
PREDICTION_LOCK = ".predictions.lock"

COMPUTED = "precision"
"""The part of what predictions depend on that another machine may have otherwise when it merges them."""


class PredictionLog:
    """A file with one finished record per line, after a line with all that the records depend on.

    Records are appended in chunks, because the rows of a chunk are sorted into batches: a resumed prediction
    begins at a chunk. A file of less than a chunk is never logged.

    Args:
        directory: the output directory of the predictions.
        about: returns everything that the predictions depend on, JSON-ready: name in messages -> value.
        size: number of records in a chunk.
    """

    keeps_last = False
    """Whether an incomplete last chunk is logged, too."""

    def __init__(self, directory: Path, about: Callable[[], Mapping[str, Any]], size: int) -> None:
        self.path = directory / PREDICTION_LOG
        self.lock = directory / PREDICTION_LOCK
        self.place: object = directory
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
            logger.info("%s: no stopped prediction; starting from the beginning", self.place)
            return
        self._check_same(stopped)
        self.num_records = sum(1 for _ in lines) // self.size * self.size
        logger.info("%s: resuming after %d examples", self.place, self.num_records)

    def _check_same(self, stopped: Mapping[str, Any]) -> None:
        if changed := _changed(stopped, self._about()):
            raise StorageError(
                f"{self.place}: the stopped prediction differs in {', '.join(changed)}; predict "
                "without --resume to start from the beginning"
            )

    def completed(self, new: Iterator[Any]) -> Iterator[Any]:
        """Yield the records of the stopped prediction, then the new ones, which are logged as they come."""
        yield from islice(self._lines(), 1, 1 + self.num_records) if self.num_records else ()
        chunk: list[Any] = []
        for record in new:
            chunk.append(record)
            yield record
            if len(chunk) == self.size:
                self.append(chunk)
                chunk = []
        if self.keeps_last:
            self.append(chunk)

    def append(self, records: Sequence[Any]) -> None:
        """Log the records of a whole chunk, or of the last one."""
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
                logger.warning("%s: the log of a stopped prediction is replaced", self.place)
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
        taken = f"{self.place} is in use by another prediction; wait until it ends, or give another folder"
        self._lock.enter_context(locked(self.lock, taken=taken))
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
                self.place,
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


def _changed(known: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    return [name for name, value in about.items() if known.get(name) != value]


@dataclass(frozen=True)
class Shards:
    """The shards of a prediction: shard k of n has every n-th chunk of examples, beginning with the k-th.

    So a shard needs no count of the examples, and a file that is sorted by length has shards of equal work.

    Args:
        directory: the output directory of the predictions.
        count: the number of shards.
        table: the file name of the predictions, if they are a table.
        number: the shard of this job, from 1; None to merge all of them.
    """

    directory: Path
    count: int
    table: str = ""
    number: int | None = None

    @classmethod
    def of(cls, directory: Path, table: str, text: str) -> Shards:
        """Read `K/N` or `merge/N`.

        Raises:
            ConfigError: the text has another form.
        """
        found = re.fullmatch(r"(merge|[1-9]\d{0,5})/([1-9]\d{0,5})", str(text))
        if found is None or (found[1] != "merge" and int(found[1]) > int(found[2])):
            raise ConfigError(
                "shard should be K/N, part K of N from 1/N to N/N, or merge/N to put all parts together, "
                f"not {text!r}"
            )
        return cls(directory, int(found[2]), table, None if found[1] == "merge" else int(found[1]))

    def path(self, number: int) -> Path:
        """Return the file of a finished shard, which has the form of a `PredictionLog`."""
        table = f"{self.table}." if self.table else ""
        return self.directory / f".predictions.{table}{number}-of-{self.count}"

    def merge(
        self, about: Mapping[str, Any], size: int, write: Callable[[Iterable[Record]], Predictions]
    ) -> Predictions:
        """Write the records of all shards in the order of the file, and remove the shards.

        Args:
            about: see `PredictionLog`; the device may differ from that of the shards.
            size: number of records in a chunk.
            write: writes the records.

        Raises:
            StorageError: a shard is missing, damaged, or differs in what predictions depend on.
        """
        written = write(self._merged(about, size))
        for number in range(1, self.count + 1):
            self.path(number).unlink(missing_ok=True)
        return written

    def _merged(self, about: Mapping[str, Any], size: int) -> Iterator[Record]:
        paths = [self.path(number) for number in range(1, self.count + 1)]
        if missing := [f"{number}" for number, path in enumerate(paths, start=1) if not path.is_file()]:
            raise StorageError(
                f"{self.directory}: of {self.count} shards, these are not finished: {', '.join(missing)}; "
                f"predict each with --shard K/{self.count} (--resume continues it), then merge again"
            )
        shards = [read_records(path) for path in paths]
        heads = [next(shard, {}) for shard in shards]
        expected = {**about, COMPUTED: heads[0].get(COMPUTED)}
        for path, head in zip(paths, heads, strict=True):
            if changed := _changed(head, expected):
                raise StorageError(f"{path}: this shard differs in {', '.join(changed)}; predict it again")
        yield from _interleaved(shards, size)
        if any(next(shard, None) is not None for shard in shards):
            raise StorageError(f"{self.directory}: the shards do not belong together; predict them again")


def _records_of_shard(path: Path) -> Iterator[Record]:
    return islice(read_records(path), 1, None)


def _interleaved(shards: Sequence[Iterator[Record]], size: int) -> Iterator[Record]:
    for shard in cycle(shards):
        chunk = list(islice(shard, size))
        yield from chunk
        if len(chunk) < size:  # only the last chunk of the file
            return


class ShardLog(PredictionLog):
    """The log of one shard; it becomes the shard's file when the shard is finished.

    Args:
        shards: the shards, with the number of this one.
        about: see `PredictionLog`.
        size: see `PredictionLog`.
    """

    keeps_last = True

    def __init__(self, shards: Shards, about: Callable[[], Mapping[str, Any]], size: int) -> None:
        assert shards.number is not None
        super().__init__(shards.directory, about, size)
        self.finished = shards.path(shards.number)
        self.path = self.finished.with_name(f"{self.finished.name}.resume")
        self.lock = self.finished.with_name(f"{self.finished.name}.lock")
        self.place = f"{shards.directory}, shard {shards.number}/{shards.count}"

    def is_finished(self) -> bool:
        """Check whether the shard has been predicted already.

        Raises:
            StorageError: it has, but with other settings; they are named.
        """
        if not self.finished.is_file():
            return False
        self._check_same(next(read_records(self.finished), {}))
        return True

    def finish(self, records: Iterable[Any]) -> SavedRecords:
        """Consume the records of `completed`, and mark the shard as finished."""
        deque(records, maxlen=0)
        with wrap_write_errors(self.path):
            file = self._file or self._opened()  # an empty shard has no records
            os.fsync(file.fileno())
            file.close()
            self.path.replace(self.finished)
        return self.records()

    def records(self) -> SavedRecords:
        """Return the records of the finished shard."""
        count = sum(1 for _ in read_records(self.finished)) - 1
        return SavedRecords(self.finished, count, _records_of_shard)
