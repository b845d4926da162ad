"""One process at a time: a lock on a file, which the system takes back from a process that dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def locked(path: Path, work: str = "", taken: Callable[[], str] | None = None) -> Iterator[None]:
    """Wait until no other process is within this context for the same file, or fail at once.

    On a file system that has no locks nobody waits.

    Args:
        path: the file; it is made where it is not there.
        work: what the other process is doing, for the line that tells of the waiting.
        taken: the message of the error where another process has the lock; None to wait for it.

    Raises:
        StorageError: the file cannot be made, or another process has the lock.
    """
    lock = lock_on(path)
    with wrap_write_errors(path):
        open_to_append(path).close()
    try:
        lock.acquire(blocking=False)
    except Timeout:  # first, since it is an OSError too
        # Where flock is missing, filelock takes a file's existence for a lock. That outlives its process.
        is_held = not isinstance(lock, SoftFileLock)
        if is_held and taken is not None:
            raise StorageError(taken()) from None
        if is_held:
            logger.info("waiting for another process that is %s", work)
            lock.acquire()
    except (OSError, NotImplementedError):  # no locks there
        pass
    if taken is not None and not lock.is_locked:
        logger.warning("%s is on a file system without locks; see that nothing else uses it", path.parent)
    try:
        yield
    finally:
        lock.release()
