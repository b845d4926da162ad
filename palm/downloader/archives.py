"""Unpacking an archive that nobody vouches for: plain files inside one folder, in bounded number and size."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from palm.core.errors import StorageError

MAX_MEMBERS = 10_000
"""More than any model has, one file per parameter included."""

MAX_GROWTH = 20
MIN_LIMIT = 1 << 26
"""How many times its own size an archive may unpack to; 64 MiB are never too much. Weights hardly shrink."""

_OUTSIDE = re.compile(r"^/|(?:^|/)\.\.(?:/|$)|[\\:\0]")
"""Absolute names, names that climb, and what Windows would read as either."""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a gzipped tar into a new folder.

    Only directories and plain files are taken; hidden files are passed over. Owners, rights and times
    of the archive do not matter.

    Args:
        archive: the file.
        folder: where to, not there yet.

    Returns:
        The folder, or the only directory in it, if that is all it holds.

    Raises:
        StorageError: it is damaged, cut short, or unsafe: a name that leads elsewhere, a link or device,
            too many files, too many bytes.
        OSError: the folder cannot be written.
    """
    folder.mkdir()
    limit = max(MIN_LIMIT, MAX_GROWTH * archive.stat().st_size)
    try:
        with gzip.open(archive) as raw:
            stream = _Limited(raw, limit, archive.name)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                _take(tar, folder, archive.name)
            while stream.read(1 << 20):
                pass  # gzip compares its checksum at the end, which tar does not read up to
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise StorageError(f"{archive.name} is damaged or no gzipped tar: {error}") from error
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


class _Limited(io.RawIOBase):
    """The unpacked bytes, headers included, up to a limit."""

    def __init__(self, raw: gzip.GzipFile, limit: int, name: str) -> None:
        self.raw, self.left, self.limit, self.name = raw, limit, limit, name

    def read(self, size: int = -1, /) -> bytes:
        block = self.raw.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise StorageError(f"{self.name} unpacks to more than {self.limit} bytes: it is not a model")
        return block


def _take(tar: tarfile.TarFile, folder: Path, archive: str) -> None:
    for number, member in enumerate(tar):
        if number >= MAX_MEMBERS:
            raise StorageError(f"{archive} holds more than {MAX_MEMBERS} files: it is not a model")
        if _OUTSIDE.search(member.name):
            raise StorageError(f"{archive} is unsafe: the name {member.name!r} leads out of the folder")
        if not (member.isdir() or member.isreg()) or member.issparse():
            raise StorageError(f"{archive} is unsafe: {member.name!r} is neither a plain file nor a folder")
        parts = PurePosixPath(member.name).parts
        if member.isreg() and not any(part.startswith(".") for part in parts):
            path, source = folder.joinpath(*parts), tar.extractfile(member)
            assert source is not None
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
            except (FileExistsError, NotADirectoryError):
                raise StorageError(f"{archive} is damaged: it holds {member.name!r} twice") from None
