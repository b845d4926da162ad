"""File locks, which the system releases when a process dies."""

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


@contextmanager
def locked(path: Path, work: str = "", taken: Callable[[], str] | None = None) -> Iterator[None]:
    """Hold the lock of a file; wait for another process that has it, or fail at once.

    On a file system without locks, the context is entered without waiting.

    Args:
        path: the file; created if it is missing.
        work: what the other process is doing, for the log line about waiting.
        taken: makes the message of the error if another process has the lock; None to wait for it.

    Raises:
        StorageError: the file cannot be created, is not an empty regular file, or another process has the
            lock and `taken` is given.
    """
    # Acquiring the lock truncates the file.
    is_own = is_plain(path) and (path.stat().st_size, path.stat().st_nlink) == (0, 1)
    if os.path.lexists(path) and not is_own:
        raise StorageError(f"{path} is not a lock file of palm's; move it elsewhere")
    lock = FileLock(path)
    with wrap_write_errors(path):
        open_to_append(path).close()
    try:
        lock.acquire(blocking=False)
    except Timeout:  # first, since it is an OSError too
        # Without flock, filelock uses the existence of a file as the lock, which outlives the process.
        is_held = not isinstance(lock, SoftFileLock)
        if is_held and taken is not None:
            raise StorageError(taken()) from None
        if is_held:
            logger.info("waiting for another process that is %s", work)
            lock.acquire()
    except (OSError, NotImplementedError):  # no locks there
        pass
    if taken is not None and not lock.is_locked:
        logger.warning("%s does not support file locks; make sure that nothing else uses it", path.parent)
    try:
        yield
    finally:
        lock.release()
