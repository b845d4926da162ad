"""A cache of directories shared between processes and users: each entry is made once, and expires unused."""

from __future__ import annotations

import atexit
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from palm.core.errors import ResourceError, StorageError
from palm.core.io import (
    discard,
    is_sealed,
    locked,
    make_folder,
    new_directory,
    remove_directory,
    remove_stale,
    verify,
)
from palm.core.logging import logger

_NO_MEMORY = ("DefaultCPUAllocator", "can't start new thread", "failed to map segment from shared object")
"""Phrases in messages of PyTorch, Python and the dynamic loader."""

_LESS = "lower batch_size and set gradient_accumulation_steps"
LESS_OF_A_GPU = f"To use less, {_LESS}, or activation_checkpointing"
"""The remedy in training if a GPU has too little memory."""

LESS_PREDICTED = "To use less, lower pred_batch_size, or the `batch_size` of a loaded model"
"""The remedy in prediction and evaluation."""


@contextmanager
def explain_limits(of_a_gpu: str = LESS_OF_A_GPU) -> Iterator[None]:
    """Turn errors about exhausted resources into one that gives the remedy; also a decorator.

    Args:
        of_a_gpu: the remedy for the memory of a GPU.

    Raises:
        ResourceError: instead of `MemoryError`, PyTorch's errors about the memory of host and GPU, and the
            system's errors about too many open files, too long paths and a removed working directory.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if (reason := _limit(error, of_a_gpu)) is None:
            raise
        raise ResourceError(reason) from error


def _limit(error: BaseException, of_a_gpu: str) -> str | None:
    """Return the limit that an error is about, and the remedy; None if it is about something else."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError":  # torch's; this avoids importing torch
        return f"the GPU is out of memory ({text.splitlines()[0][:200]}). {of_a_gpu}"
    is_memory = isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)
    if is_memory or getattr(error, "errno", None) == errno.ENOMEM:
        return f"out of memory; {_LESS}, end other programs, or raise the limit (ulimit -v)"
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "Too many open files" in text:
        return "too many open files; raise the limit of this process (ulimit -n)"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # from `os.getcwd`
        return "the working directory has been removed; change to another"
    if getattr(error, "errno", None) == errno.ENAMETOOLONG:
        return f"{str(getattr(error, 'filename', ''))[:80]}… is too long for a path; give a shorter one"
    return None


T = TypeVar("T")

VARIABLE = "PALM_DATA_CACHE"
KEPT_DAYS = 30
"""Days until unused entries are removed."""

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Cache:
    """A folder of entries, each an atomic directory.

    Args:
        folder: created when needed; several processes and users may share it.
    """

    folder: Path

    @classmethod
    def of_user(cls) -> Cache | None:
        """Return the cache in $PALM_DATA_CACHE, or `palm` in the user's cache folder.

        Returns:
            None if the variable is empty, or the user has no home folder.
        """
        named = os.environ.get(VARIABLE)
        if named is not None:
            return cls(Path(named).expanduser()) if named else None
        try:
            # The same place on every system, like the caches of PyTorch and Hugging Face.
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError:  # from `Path.home`
            return None
        return cls(caches / "palm")

    @classmethod
    def of_anyone(cls) -> Cache:
        """Return the cache of the user, or that of this process."""
        return cls.of_user() or _of_process()

    def entry(self, key: str, what: str, fill: Callable[[Path], object], read: Callable[[Path], T]) -> T:
        """Return the value of an entry; one process makes the entry first if it does not exist.

        Args:
            key: 32 hexadecimal digits.
            what: the source of the entry, for messages.
            fill: writes the entry into a new folder.
            read: returns its value; raises StorageError if the entry is damaged and must be rebuilt.

        Raises:
            OSError: the folder cannot be written.
            StorageError: the new entry cannot be read.
        """
        entry = self.folder / key
        with suppress(StorageError):
            if entry.is_dir():
                return _used(entry, read)
        # Nearly every call has returned above, without a lock: a finished entry never changes.
        make_folder(self.folder)
        with locked(self.folder / f"{key}.lock", f"preparing {what}"):
            try:
                if entry.is_dir():  # another process made it in the meantime
                    return _used(entry, read)
            except StorageError as error:
                logger.warning("%s: the cached copy is damaged and will be rebuilt: %s", what, error)
                discard(entry)
            # Here, because making an entry takes time anyway, and a cache that is only read does not grow.
            forget_unused(self.folder)
            try:
                with new_directory(entry) as part:
                    fill(part)
            except StorageError:
                if not is_sealed(entry):  # without locks, another process may have been first
                    raise
            return read(entry)

    def file(self, key: str, name: str, what: str, write: Callable[[Path], object]) -> Path:
        """Return the file of an entry with one file, after verifying its checksum; see `entry`.

        If this user may not read the entry or write to the folder, it is in the cache of this process.
        """

        def fill(part: Path) -> None:
            write(part / name)

        def read(entry: Path) -> Path:
            verify(entry, (name,))
            return entry / name

        try:
            return self.entry(key, what, fill, read)
        except (OSError, StorageError):
            return _of_process().entry(key, what, fill, read)


PROCESS = "PALM_PROCESS_CACHE"
"""Environment variable with the cache of a process, for those that it starts."""


def _of_process() -> Cache:
    """Return the cache of this process; others cannot fill it, as they could one with a known name."""
    if PROCESS not in os.environ:
        os.environ[PROCESS] = tempfile.mkdtemp(prefix="palm-cache-")
        atexit.register(shutil.rmtree, os.environ[PROCESS], ignore_errors=True)
    return Cache(Path(os.environ[PROCESS]))


def is_cached(key: str, name: str) -> bool:
    """Check whether the file of an entry is in the cache of the user, or of this process."""
    caches = [Cache.of_user(), _of_process() if PROCESS in os.environ else None]
    return any((each.folder / key / name).is_file() for each in caches if each is not None)


def _used(entry: Path, read: Callable[[Path], T]) -> T:
    value = read(entry)
    with suppress(OSError):  # the entry belongs to another user
        os.utime(entry)
    return value


def forget_unused(folder: Path) -> None:
    """Remove what dead processes left in a cache, and entries unused for `KEPT_DAYS` days."""
    remove_stale(folder)
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for place in folder.iterdir():
        with suppress(FileNotFoundError):  # another process was first
            about = place.lstat()
            if not _KEY.fullmatch(place.stem) or about.st_mtime > oldest:
                continue
            if place.suffix == ".lock":
                place.unlink()
            elif is_sealed(place):
                remove_directory(place)
