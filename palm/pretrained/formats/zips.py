"""Untrusted archives: limits on their unpacked size, relative to the size of the file."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_DIRECTORY = 1 << 24
"""Limit of the bytes of the table of contents, some 200,000 entries; Python needs 20 times as many."""

MAX_GROWTH = 2
MIN_LIMIT = 1 << 29
"""An archive of weights may unpack to twice its size plus 512 MiB, because weights hardly compress."""

MAX_MEMBERS = 10_000
"""Limit of the files in an archive; no model has more, even with one per parameter and optimizer state."""


def max_unpacked(size: int) -> int:
    """Return the limit of the unpacked bytes for an archive of a given size."""
    return MAX_GROWTH * size + MIN_LIMIT


class LimitedReader(io.RawIOBase):
    """Reader of the unpacked bytes of a gzip file, up to a limit.

    Args:
        raw: the file.
        limit: limit in bytes.
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
            raise ValueError(f"it unpacks to more than {self.limit} bytes; it is not a model")
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Read to the end, which tar does not do, because gzip verifies its checksum there."""
        while self.read(1 << 20):
            pass


@contextmanager
def open_zip(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file whose entries do not overlap and do not unpack to far more than its size.

    Raises:
        ValueError: if it is not such a file.
        OSError, zipfile.BadZipFile: if it cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        # A private function of Python; the public reader allocates memory for the whole table of contents.
        end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
    if end is None:
        raise ValueError("it is not a zip file, or it is truncated")
    if (directory := end[zipfile._ECD_SIZE]) > MAX_DIRECTORY:  # type: ignore[attr-defined]
        raise ValueError(f"its table of contents claims {directory} bytes; the limit is {MAX_DIRECTORY}")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.compress_size for entry in entries) > size:
            raise ValueError("its entries claim more bytes than the file has")
        if (unpacked := sum(entry.file_size for entry in entries)) > max_unpacked(size):
            raise ValueError(f"it unpacks to {unpacked} bytes, far more than its {size}; it is not a model")
        yield archive
