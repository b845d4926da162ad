"""Unpack an archive of unknown origin: plain files inside one folder, in bounded number and size."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from palm.core.errors import StorageError
from palm.core.files.door import new_folder
from palm.pretrained.formats.zips import MAX_MEMBERS, Limited, most_unpacked

_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, FileExistsError, NotADirectoryError)
"""Errors that come of the archive itself; any other OSError is the disk's."""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a gzipped tar into a new folder; return the folder, or the only directory that it holds.

    Only directories and plain files are taken, as `tarfile.data_filter` takes them; hidden files are skipped.

    Raises:
        StorageError: it is damaged, cut short, or unsafe.
        OSError: the folder cannot be written.
    """
    new_folder(folder)
    try:
        _extract(archive, folder)
    except tarfile.FilterError as error:
        raise StorageError(f"{archive.name} is unsafe: {error}") from error
    except ValueError as error:
        raise StorageError(f"{archive.name}: {error}") from error
    except _DAMAGE as error:
        raise StorageError(f"{archive.name} is damaged or no gzipped tar: {error}") from error
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def _extract(archive: Path, folder: Path) -> None:
    with gzip.open(archive) as raw:
        stream = Limited(raw, most_unpacked(archive.stat().st_size))
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            tar.extractall(folder, _plain_members(tar), filter="data")
        stream.drain()


def _plain_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield directories and files; links and holes, which the data filter allows, are refused."""
    for number, member in enumerate(tar):
        if number >= MAX_MEMBERS:
            raise ValueError(f"it holds more than {MAX_MEMBERS} files; it is no model")
        if not (member.isdir() or member.isreg()) or member.issparse():
            raise ValueError(f"it is unsafe: {member.name!r} is neither a plain file nor a folder")
        # `..` is not skipped as hidden: the data filter has to see it, and refuses it.
        if not any(part.startswith(".") and part != ".." for part in PurePosixPath(member.name).parts):
            yield member
