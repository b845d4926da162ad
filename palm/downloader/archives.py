"""Unpacking of untrusted archives: regular files inside one folder, limited in number and size."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from palm.core.errors import StorageError
from palm.core.files.door import new_folder
from palm.pretrained.formats.zips import MAX_MEMBERS, LimitedReader, max_unpacked

DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, FileExistsError, NotADirectoryError)
"""Errors caused by the archive itself; any other OSError is caused by the disk."""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a gzipped tar into a new folder; return the folder, or the only directory inside it.

    Only directories and regular files that `tarfile.data_filter` allows are extracted; hidden ones are not.

    Raises:
        StorageError: if the archive is damaged, truncated or unsafe.
        OSError: if the folder cannot be written.
    """
    new_folder(folder)
    try:
        _extract(archive, folder)
    except tarfile.FilterError as error:
        raise StorageError(f"{archive.name} is unsafe: {error}") from error
    except ValueError as error:
        raise StorageError(f"{archive.name}: {error}") from error
    except DAMAGE as error:
        raise StorageError(f"{archive.name} is damaged or not a gzipped tar: {error}") from error
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def _extract(archive: Path, folder: Path) -> None:
    with gzip.open(archive) as raw:
        stream = LimitedReader(raw, max_unpacked(archive.stat().st_size))
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            tar.extractall(folder, _plain_members(tar), filter="data")
        stream.drain()


def _plain_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield directories and files; refuse links and sparse files, which the data filter allows."""
    for number, member in enumerate(tar):
        if number >= MAX_MEMBERS:
            raise ValueError(f"it contains more than {MAX_MEMBERS} files; it is not a model")
        if not (member.isdir() or member.isreg()) or member.issparse():
            raise ValueError(f"it is unsafe: {member.name!r} is neither a regular file nor a folder")
        # `..` is not skipped as hidden, so the data filter can refuse it.
        if not any(part.startswith(".") and part != ".." for part in PurePosixPath(member.name).parts):
            yield member
