"""A cache of directories that processes and users share: made once, by one of them, and forgotten unused."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from palm.core.errors import StorageError
from palm.core.files.atomic_dir import move_foreign_aside, new_directory, remove_directory, remove_stale
from palm.core.files.door import make_folder, remove
from palm.core.files.locking import locked
from palm.core.files.manifest import is_sealed, verify
from palm.core.logging import logger

T = TypeVar("T")
C = TypeVar("C", bound="Cache")

VARIABLE = "PALM_DATA_CACHE"
KEPT_DAYS = 30
"""Days until unused entries are removed."""

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Cache:
    """A folder of entries, each a directory of its own that appears whole.

    Args:
        folder: made when it is needed; several processes and users may share it.
    """

    folder: Path

    @classmethod
    def of_user(cls: type[C]) -> C | None:
        """The folder that the environment variable PALM_DATA_CACHE names, or `palm` among the user's caches.

        Returns:
            None where the variable is empty, or the user has no home.
        """
        named = os.environ.get(VARIABLE)
        if named is not None:
            return cls(Path(named).expanduser()) if named else None
        try:
            # On every system, as PyTorch and Hugging Face have theirs.
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError:  # of `Path.home`
            return None
        return cls(caches / "palm")

    @classmethod
    def of_anyone(cls: type[C]) -> C:
        """Return the cache of the user, or one among the temporary files where there is none."""
        return cls.of_user() or cls(Path(tempfile.gettempdir()) / "palm-cache")

    def entry(self, key: str, what: str, fill: Callable[[Path], object], read: Callable[[Path], T]) -> T:
        """The value of an entry; it is made first, by one process, where it is not there yet.

        Args:
            key: of the entry, 32 hexadecimal digits.
            what: what it is made of, for messages.
            fill: makes it in a new folder.
            read: its value; raises StorageError if the entry is damaged, and so is to be made anew.

        Raises:
            OSError: the folder cannot be written.
            StorageError: what was written cannot be read.
        """
        entry = self.folder / key
        with suppress(StorageError):
            if entry.is_dir():
                return _used(entry, read)
        # Nearly every call has ended above, without a lock: an entry does not change once it is there.
        make_folder(self.folder)
        with locked(self.folder / f"{key}.lock", f"preparing {what}"):
            try:
                if entry.is_dir():  # another process has made it by now
                    return _used(entry, read)
            except StorageError as error:
                logger.warning("%s: its cached copy is damaged, so it is made again: %s", what, error)
                move_foreign_aside(entry)
                remove_directory(entry)
            # Here, since whoever makes an entry waits anyway, and a cache that is only read does not grow.
            forget_unused(self.folder)
            try:
                with new_directory(entry) as part:
                    fill(part)
            except StorageError:
                if not is_sealed(entry):  # where there are no locks, another process may have been first
                    raise
            return read(entry)

    def file(self, key: str, name: str, what: str, write: Callable[[Path], object]) -> Path:
        """The file of an entry that has one, checked against its checksum; see `entry`."""

        def fill(part: Path) -> None:
            write(part / name)

        def read(entry: Path) -> Path:
            verify(entry, (name,))
            return entry / name

        return self.entry(key, what, fill, read)


def _used(entry: Path, read: Callable[[Path], T]) -> T:
    value = read(entry)
    with suppress(OSError):  # an entry of another user
        os.utime(entry)
    return value


def forget_unused(folder: Path) -> None:
    """Remove what dead processes left in a cache, and entries that were not used for `KEPT_DAYS` days."""
    remove_stale(folder, lambda name: _KEY.fullmatch(name) is not None, is_shared=True)
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for place in folder.iterdir():
        about = place.lstat()
        if not _KEY.fullmatch(place.stem) or about.st_mtime > oldest:
            continue
        if place.suffix == ".lock" and not about.st_size:
            remove(place)
        elif is_sealed(place):
            remove_directory(place)
