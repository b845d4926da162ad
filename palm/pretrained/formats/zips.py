"""Zip files of arrays that nobody vouches for: what they claim is compared with what they weigh."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_DIRECTORY = 1 << 24
"""Bytes of the table of contents, some 200,000 entries; Python keeps twenty times as much of each."""

MAX_GROWTH, MIN_LIMIT = 2, 1 << 29
"""An archive of weights may unpack to twice its size and 512 MiB: weights hardly shrink."""

_END, _END_64, _LOCATOR_64 = 22, 56, 20
_LONGEST_COMMENT = 0xFFFF


def most_unpacked(size: int) -> int:
    """How many bytes an archive of this size may unpack to."""
    return MAX_GROWTH * size + MIN_LIMIT


@contextmanager
def opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """A zip file whose entries do not overlap and do not unpack to far more than it weighs.

    Raises:
        ValueError: it is another kind of file, or does.
        OSError, zipfile.BadZipFile: it cannot be read.
    """
    size = file.stat().st_size
    if (directory := _directory_size(file, size)) > MAX_DIRECTORY:
        raise ValueError(f"its table of contents claims {directory} bytes; the most are {MAX_DIRECTORY}")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.compress_size for entry in entries) > size:
            raise ValueError("its entries claim more bytes than it has")
        if (unpacked := sum(entry.file_size for entry in entries)) > most_unpacked(size):
            raise ValueError(f"it unpacks to {unpacked} bytes, far more than its {size}; it is no model")
        yield archive


def _directory_size(file: Path, size: int) -> int:
    """The size of the table of contents, as the end of the file says."""
    with file.open("rb") as stream:
        start = max(0, size - _LONGEST_COMMENT - _END - _LOCATOR_64)
        stream.seek(start)
        tail = stream.read()
        at = tail.rfind(b"PK\5\6", 0, len(tail) - _END + 4)
        if at < 0:
            raise ValueError("it is no zip file, or cut short")
        found: int = struct.unpack_from("<I", tail, at + 12)[0]
        locator = tail[max(0, at - _LOCATOR_64) : at]
        if locator[:4] != b"PK\6\7":
            return found
        stream.seek(struct.unpack_from("<Q", locator, 8)[0])
        return int(struct.unpack_from("<Q", stream.read(_END_64), 40)[0])
