"""The rows of a file that is gone through again and again, encoded at the first time: a run's dev data."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from palm.core.errors import PalmError
from palm.core.files.fs import left_by_the_dead, temporary_name
from palm.reader.rows.chunks import RowEncoder
from palm.reader.rows.rows import Rows
from palm.reader.rows.stored import RowsWriter, mapped_rows

IN_MEMORY = 1 << 25
"""32 MiB; what goes beyond is written down and mapped."""


class Encoded(NamedTuple):
    """A chunk of examples, encoded.

    Args:
        rows: to predict.
        labelled: the same with what is true of them; None where training has other rows.
    """

    rows: Rows
    labelled: Rows | None


class KeptRows:
    """Chunks of one file in order, encoded when they are first asked for.

    They are taken for the same as long as the file has the size and the time of change that it had. Only rows
    of a reader that says that they may be kept (`cacheable`) are.

    Args:
        folder: for what goes beyond memory, in a folder of its own that vanishes with this object; the
            system's folder for temporary files where it is None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._about: tuple[object, ...] = ()

    def begin(self, reader: RowEncoder, path: Path) -> bool:
        """Whether chunks are kept for this pass over a file; those of another state of it are forgotten."""
        if not type(reader).__dict__.get("cacheable", False):
            return False
        try:
            state = path.stat()
        except OSError:  # whoever reads it says so
            return False
        about = (reader, path, state.st_size, state.st_mtime_ns, state.st_ino)
        if about != self._about:
            self._about = about
            self._rows, self._labelled = _Parts(self._folder), _Parts(self._folder)
            self._has_labelled: list[int | None] = []
        return True

    def chunk(self, number: int, make: Callable[[], Encoded]) -> Encoded:
        """Chunk `number` of the file, counted from 0, after those before it; `make` encodes a new one."""
        if number < len(self._has_labelled):
            place = self._has_labelled[number]
            return Encoded(self._rows[number], None if place is None else self._labelled[place])
        made = make()
        self._rows.append(made.rows)
        self._has_labelled.append(None if made.labelled is None else len(self._labelled))
        if made.labelled is not None:
            self._labelled.append(made.labelled)
        return made


class _Parts:
    """Rows, a part at a time: the last ones in memory, all others mapped."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._waiting: list[Rows] = []
        self._bytes, self._is_stuck = 0, False
        self._mapped: list[tuple[Rows, int, int]] = []

    def __len__(self) -> int:
        return len(self._mapped) + len(self._waiting)

    def __getitem__(self, number: int) -> Rows:
        if number >= len(self._mapped):
            return self._waiting[number - len(self._mapped)]
        rows, start, stop = self._mapped[number]
        return rows.part(start, stop)

    def append(self, rows: Rows) -> None:
        self._waiting.append(rows)
        self._bytes += rows.num_bytes
        if self._bytes > IN_MEMORY and not self._is_stuck:
            try:
                self._write()
            except (OSError, PalmError):  # no place to write: it stays in memory
                self._is_stuck = True

    def _write(self) -> None:
        if self._own is None:
            folder = self._folder or Path(tempfile.gettempdir())
            folder.mkdir(parents=True, exist_ok=True)
            for old in left_by_the_dead(folder / "palm-rows"):
                shutil.rmtree(old, ignore_errors=True)
            name = temporary_name(folder / "palm-rows").name
            self._own = tempfile.TemporaryDirectory(prefix=f"{name}.", dir=folder)
        place = Path(tempfile.mkdtemp(dir=self._own.name))
        with RowsWriter(place) as writer:
            for part in self._waiting:
                writer.append(part)
            writer.finish([])
        written, start = mapped_rows(place)[0], 0
        for part in self._waiting:
            self._mapped.append((written, start, start + len(part)))
            start += len(part)
        self._waiting, self._bytes = [], 0
