"""The folder beside a model's own in which it is gathered, by one process at a time."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from palm.core.errors import StorageError

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: IO[str]) -> None:
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: IO[str]) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A folder `<folder>.part` to gather files in; afterwards only what a further try needs is left of it.

    `files/` in it is kept for as long as it holds something, everything else is removed.

    Raises:
        StorageError: it cannot be written, or another process is at it.
    """
    work = folder.with_name(f"{folder.name}.part")
    try:
        (work / "files").mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("w") as handle:
            _hold(handle, folder)
            shutil.rmtree(work / "unpacked", ignore_errors=True)
            try:
                yield work
            finally:
                shutil.rmtree(work / "unpacked", ignore_errors=True)
                with suppress(OSError):
                    (work / "files").rmdir()
    except OSError as error:
        raise StorageError(
            f"cannot write {work}: {error.strerror or error}; make room there or choose another folder, and "
            "run the same again"
        ) from error
    finally:
        if not (work / "files").is_dir():
            shutil.rmtree(work, ignore_errors=True)


def _hold(handle: IO[str], folder: Path) -> None:
    """Lock a file until it is closed; the system lets go of it too when a process dies."""
    try:
        _lock(handle)
    except (BlockingIOError, PermissionError):
        raise StorageError(f"another process is downloading {folder}; wait until it is done") from None
    except OSError:
        return  # a network file system without locks: two downloads at once are then the user's to avoid
