"""One process at a time: a lock on a file, which the system takes back from a process that dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from palm.core.errors import StorageError
from palm.core.files.door import is_plain, open_to_append
from palm.core.files.write_errors import wrap_write_errors
from palm.core.logging import logger


def lock_on(path: Path) -> FileLock:
    """Return the lock of a file, which taking it would make empty.

    Raises:
        StorageError: there is a file of that name that holds something, or that is no plain file.
    """
    is_own = is_plain(path) and (path.stat().st_size, path.stat().st_nlink) == (0, 1)
    if os.path.lexists(path) and not is_own:
        raise StorageError(f"{path} is no lock of palm's own; move it elsewhere")
    return FileLock(path)


def lock_at_once(path: Path, taken: Callable[[], str]) -> FileLock:
    """Take the lock on a file, or fail; on a file system without locks there is a warning, and none is taken.

    Args:
        path: the file; its folder is there.
        taken: the message where another process has the lock.

    Raises:
        StorageError: another process has it, or the file cannot be made.
    """
    lock = lock_on(path)
    with wrap_write_errors(path.parent):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise StorageError(taken()) from None
        except NotImplementedError:
            logger.warning("%s is on a file system without locks; see that nothing else uses it", path.parent)
    return lock


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Wait until no other process is within this context for the same file.

    On a file system that has no locks nobody waits.

    Args:
        path: the file; it is made where it is not there.
        work: what the other process is doing, for the line that tells of the waiting.

    Raises:
        StorageError: the file cannot be made.
    """
    lock = lock_on(path)
    with wrap_write_errors(path):
        open_to_append(path).close()
    with suppress(OSError, NotImplementedError):  # no locks there
        try:
            lock.acquire(blocking=False)
        except Timeout:
            # Where flock is missing, filelock takes a file's existence for a lock. That outlives its process.
            if not isinstance(lock, SoftFileLock):
                logger.info("waiting for another process that is %s", work)
                lock.acquire()
    try:
        yield
    finally:
        lock.release()
