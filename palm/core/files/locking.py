"""One process at a time: a lock on a file, which the system takes back from a process that dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from palm.core.files.door import open_to_append
from palm.core.logging import logger


def lock_on(path: Path) -> FileLock:
    """Return the lock of a file, which taking it would make empty.

    Raises:
        OSError: there is a file of that name that holds something, or that is no plain file.
    """
    if os.path.lexists(path):
        with open_to_append(path) as file:
            if os.fstat(file.fileno()).st_size:
                raise OSError(errno.EEXIST, "not a lock of palm's own", str(path))
    return FileLock(path)


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Wait until no other process is within this context for the same file.

    On a file system that has no locks nobody waits.

    Args:
        path: the file; it is made where it is not there.
        work: what the other process is doing, for the line that tells of the waiting.

    Raises:
        OSError: the file cannot be made.
    """
    lock = lock_on(path)
    open_to_append(path).close()
    with suppress(OSError):  # no locks there
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
