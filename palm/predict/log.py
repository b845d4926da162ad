"""Predictions on their way: the log of a stopped one, and the parts of one that several jobs make."""

from __future__ import annotations

import json
import re
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
from palm.reader.predictions import Predictions, read_records

Write = Callable[[Iterable[Record]], Predictions]
"""Consumes the records of a file, in order."""

END = b"null\n"
"""The last line of a finished shard."""

PREDICTION_LOG = ".predictions.resume"

COMPUTED = "precision"
"""What predictions depend on, but not their merging, which may take place on another kind of device."""


@dataclass(frozen=True)
class Shard:
    """A part of a prediction: every `count`-th chunk of examples, beginning with chunk `number` - 1.

    So a shard needs no count of the examples, and a file that is sorted by length has shards of equal work.

    Args:
        number: from 1 to `count`; 0 to merge all of them.
        count: the number of shards.
        table: the file name of the predictions, if they are a table.
    """

    number: int
    count: int
    table: str

    @classmethod
    def of(cls, text: str, table: str) -> Shard:
        """Parse `K/N` or `merge/N`.

        Raises:
            ConfigError: the text has another form.
        """
        found = re.fullmatch(r"(merge|[1-9]\d{0,5})/([1-9]\d{0,5})", str(text))
        if found is None or (found[1] != "merge" and int(found[1]) > int(found[2])):
            raise ConfigError(
                "shard should be K/N, part K of N from 1/N to N/N, or merge/N to put all parts together, "
                f"not {text!r}"
            )
        return cls(0 if found[1] == "merge" else int(found[1]), int(found[2]), table)

    def log_name(self, number: int | None = None) -> str:
        """Return the name of the log of a shard; by default, of this one."""
        table = f"{self.table}." if self.table else ""
        return f".predictions.{table}{number or self.number}-of-{self.count}.resume"

    def merge(self, directory: Path, about: Mapping[str, Any], size: int, write: Write) -> Predictions:
        """Write the records of all shards in the order of the file, and remove the shards.

        Args:
            directory: the output directory of the predictions.
            about: what the predictions depend on, see `PredictionLog`.
            size: number of records in a chunk.
            write: writes the records.

        Raises:
            StorageError: a shard is missing, damaged, or differs in what predictions depend on.
        """
        paths = [directory / self.log_name(number) for number in range(1, self.count + 1)]
        if missing := [f"{k}" for k, path in enumerate(paths, start=1) if not _is_finished(path)]:
            raise StorageError(
                f"{directory}: of {self.count} shards, these are not finished: {', '.join(missing)}; "
                f"predict each with --shard K/{self.count} (--resume continues it), then merge again"
            )
        shards = [read_records(path) for path in paths]
        first, *_ = heads = [next(shard) for shard in shards]
        for path, head in zip(paths, heads, strict=True):
            if changed := _changed(head, {**about, COMPUTED: first[COMPUTED]}):
                raise StorageError(f"{path}: this shard differs in {', '.join(changed)}; predict it again")
        written = write(_interleaved(shards, size, directory))
        for path in paths:
            path.unlink()
        return written


def _is_finished(shard: Path) -> bool:
    if not shard.is_file():
        return False
    with shard.open("rb") as file:
        file.seek(max(0, shard.stat().st_size - len(END)))
        return file.read() == END


def records_of_shard(shard: Path) -> Iterator[Record]:
    """Yield the records of a finished shard."""
    return (record for record in islice(read_records(shard), 1, None) if record is not None)


def _changed(known: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    return [name for name, value in about.items() if known.get(name) != value]


def _interleaved(shards: Sequence[Iterator[Any]], size: int, directory: Path) -> Iterator[Record]:
    """Yield chunks of the shards in turn, up to the first end, which must then be that of all of them."""
    for shard in cycle(shards):
        chunk = list(islice(shard, size))
        yield from (record for record in chunk if record is not None)
        if chunk[-1:] != [None]:
            continue
        if any(next(other, None) is not None for other in shards):
            raise StorageError(f"{directory}: the shards do not belong together; predict them again")
        return


class PredictionLog:
    """A file with one finished record per line, after a line with all that the records depend on.

    Records are appended in chunks, because the rows of a chunk are sorted into batches: a resumed prediction
    begins at a chunk.

    Args:
        directory: the output directory of the predictions.
        about: returns everything that the predictions depend on, JSON-ready: name in messages -> value.
        size: number of records in a chunk.
        shard: the part of a file that is predicted; its log is its result, and ends with the line `null`.
    """

    def __init__(
        self, directory: Path, about: Callable[[], Mapping[str, Any]], size: int, shard: Shard | None = None
    ) -> None:
        self.path = directory / (PREDICTION_LOG if shard is None else shard.log_name())
        self.is_kept = shard is not None
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
        if changed := _changed(stopped, self._about()):
            raise StorageError(
                f"{self.path.parent}: the stopped prediction differs in {', '.join(changed)}; predict "
                "without --resume to start from the beginning"
            )
        self.num_records = sum(line is not None for line in lines) // self.size * self.size
        logger.info("%s: resuming after %d examples", self.path.parent, self.num_records)

    def records(self) -> Iterator[Record]:
        """Yield the records of the log."""
        return islice(self._lines(), 1, 1 + self.num_records) if self.num_records else iter(())

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
        """Delete the log after success, and after an error in the data, which must be corrected first."""
        with self._lock, suppress(OSError):  # a full or read-only disk has been reported already
            if self._file is not None:
                self._file.close()
            # Without a record of this prediction, the log is that of another one, to another table.
            is_over = not self.is_kept if kind is None else issubclass(kind, DataError)
            if self.num_records and is_over:
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
    return f"{json.dumps(value, default=str)}\n".encode()
