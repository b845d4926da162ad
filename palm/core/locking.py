"""One process at a time: a lock on a file, which the system takes back from a process that dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from palm.core.logging import logger

_PAUSE = 0.1  # seconds between two tries

if sys.platform == "win32":
    import msvcrt

    def _try_to_lock(file: BinaryIO) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _try_to_lock(file: BinaryIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Wait until no other process is within this context for the same file.

    On a file system that has no locks nobody waits.

    Args:
        path: the file; it is made where it is not there, and stays.
        work: what the other process is doing, for the line that tells of the waiting.

    Raises:
        OSError: the file cannot be made.
    """
    with path.open("ab") as file:
        with suppress(OSError):
            if not _try_to_lock(file):
                logger.info("waiting for another process that is %s", work)
                while not _try_to_lock(file):
                    time.sleep(_PAUSE)
        yield
