"""Predictions on their way: the log of a stopped one, and the parts of one that several jobs make."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from palm.core.errors import ConfigError, DataError, StorageError
from palm.core.io import locked, wrap_write_errors
from palm.core.logging import logger
from palm.reader import Record
from palm.reader.predictions import Predictions, SavedRecords, json_value, read_records

END = b"null\n"
"""The last line of a finished log."""

PREDICTION_LOG = ".predictions.resume"

COMPUTED = "precision"
"""What predictions depend on, but not their merging, which may take place on another kind of device."""


class Output(NamedTuple):
    """The predictions of a file.

    Args:
        file: the data file.
        folder: the folder of the predictions.
        table: the name of their table in it; "" for the files of the reader.
        about: returns all that they depend on, JSON-ready: name in messages -> value.
        write: consumes all records, in order.
    """

    file: Path
    folder: Path
    table: str
    about: Callable[[], Mapping[str, Any]]
    write: Callable[[Iterable[Record]], Predictions]


def _part_of(shard: str | None) -> tuple[int, int]:
    """Parse `K/N` or `merge/N`, which is (0, N); None is (1, 1).

    Raises:
        ConfigError: the text has another form.
    """
    if shard is None:
        return 1, 1
    found = re.fullmatch(r"(merge|[1-9]\d{0,5})/([1-9]\d{0,5})", str(shard))
    if found is None or (found[1] != "merge" and int(found[1]) > int(found[2])):
        raise ConfigError(
            "shard should be K/N, part K of N from 1/N to N/N, or merge/N to put all parts together, "
            f"not {shard!r}"
        )
    return 0 if found[1] == "merge" else int(found[1]), int(found[2])


def _is_finished(shard: Path) -> bool:
    if not shard.is_file():
        return False
    with shard.open("rb") as file:
        file.seek(max(0, shard.stat().st_size - len(END)))
        return file.read() == END


def _records_of(shard: Path) -> Iterator[Record]:
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
    begins at a chunk. One of N shards has every N-th chunk, so that it needs no count of the examples, and
    shards of a file that is sorted by length have equal work.

    Args:
        out: the predictions.
        size: number of records in a chunk.
        shard: as for `InferenceModel.predict_file`.

    Attributes:
        number: of the shard, from 1 to `count`; 0 to merge all of them.
        count: the number of shards.
        num_records: number of records in the log.

    Raises:
        ConfigError: `shard` has another form.
    """

    def __init__(self, out: Output, size: int, shard: str | None = None) -> None:
        self.out = out
        self.size = size
        self.number, self.count = _part_of(shard)
        self.num_records = 0
        self._is_whole = shard is None
        self.path = self._path_of(self.number)
        self._about = cache(out.about)
        self._file: IO[bytes] | None = None
        self._lock = ExitStack()

    def _path_of(self, number: int) -> Path:
        table = f"{self.out.table}." if self.out.table else ""
        name = f".predictions.{table}{number}-of-{self.count}.resume"
        return self.out.folder / (PREDICTION_LOG if self._is_whole else name)

    def merge(self) -> Predictions:
        """Write the records of all shards in the order of the file, and remove the shards.

        Raises:
            StorageError: a shard is missing, damaged, or differs in what predictions depend on.
        """
        folder = self.out.folder
        paths = [self._path_of(number) for number in range(1, self.count + 1)]
        if missing := [f"{k}" for k, path in enumerate(paths, start=1) if not _is_finished(path)]:
            raise StorageError(
                f"{folder}: of {self.count} shards, these are not finished: {', '.join(missing)}; "
                f"predict each with --shard K/{self.count} (--resume continues it), then merge again"
            )
        shards = [read_records(path) for path in paths]
        first, *_ = heads = [next(shard) for shard in shards]
        for path, head in zip(paths, heads, strict=True):
            if changed := _changed(head, {**self._about(), COMPUTED: first[COMPUTED]}):
                raise StorageError(f"{path}: this shard differs in {', '.join(changed)}; predict it again")
        written = self.out.write(_interleaved(shards, self.size, folder))
        for path in paths:
            path.unlink()
        return written

    def finish(self) -> Predictions:
        """End the log, and write the predictions if it has all of them."""
        self._write([END])
        return self.merge() if self._is_whole else SavedRecords(self.path, self.num_records, _records_of)

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
            # Without a record of this prediction, the log is that of another one, to another table.
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


def _line(value: Any) -> bytes:
    return f"{json.dumps(value, default=json_value)}\n".encode()
