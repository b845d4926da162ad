"""Archives of unknown origin: bounds on what they unpack to, compared with what they weigh."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_DIRECTORY = 1 << 24
"""Bytes of the table of contents, some 200,000 entries; Python keeps twenty times as much of each."""

MAX_GROWTH = 2
MIN_LIMIT = 1 << 29
"""An archive of weights may unpack to twice its size and 512 MiB: weights hardly shrink."""

MAX_MEMBERS = 10_000
"""Files in an archive; more than any model has, one per parameter and an optimizer's memory included."""


def most_unpacked(size: int) -> int:
    """Return the number of bytes that an archive of this size may unpack to."""
    return MAX_GROWTH * size + MIN_LIMIT


class Limited(io.RawIOBase):
    """The unpacked bytes of a gzip file, up to a limit.

    Args:
        raw: the file.
        limit: in bytes.
    """

    def __init__(self, raw: gzip.GzipFile, limit: int) -> None:
        self.raw = raw
        self.limit = limit
        self.left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.raw.read(len(buffer))
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(f"it unpacks to more than {self.limit} bytes; it is no model")
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Read to the end, which tar does not: there gzip compares its checksum."""
        while self.read(1 << 20):
            pass


@contextmanager
def opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file whose entries do not overlap and do not unpack to far more than it weighs.

    Raises:
        ValueError: it is another kind of file, or does.
        OSError, zipfile.BadZipFile: it cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        # Private to Python, whose own reader of zip files begins with it, but reserves memory at once.
        end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
    if end is None:
        raise ValueError("it is no zip file, or cut short")
    if (directory := end[zipfile._ECD_SIZE]) > MAX_DIRECTORY:  # type: ignore[attr-defined]
        raise ValueError(f"its table of contents claims {directory} bytes; the most are {MAX_DIRECTORY}")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.compress_size for entry in entries) > size:
            raise ValueError("its entries claim more bytes than it has")
        if (unpacked := sum(entry.file_size for entry in entries)) > most_unpacked(size):
            raise ValueError(f"it unpacks to {unpacked} bytes, far more than its {size}; it is no model")
        yield archive
