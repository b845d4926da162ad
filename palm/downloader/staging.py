"""The folder beside a model's own in which it is gathered, by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from palm.core.errors import StorageError
from palm.core.files.fs import remove
from palm.core.files.locking import locked


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Provide the folder `<folder>.part` to gather files in; a second process waits.

    Afterwards `files/` in it is kept for as long as it holds something, everything else is removed.

    Raises:
        StorageError: it cannot be written.
    """
    work, lock = (folder.with_name(f"{folder.name}.{end}") for end in ("part", "lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, f"downloading {folder}"):
            remove(work / "unpacked")
            (work / "files").mkdir(parents=True, exist_ok=True)
            try:
                yield work
            finally:
                with suppress(OSError):
                    (work / "files").rmdir()
                remove(work / "unpacked" if (work / "files").is_dir() else work)
                # While it is held, so that whoever waits for it finds it gone and makes a new one. Windows
                # does not remove a file that is open; there it stays.
                remove(lock)
    except OSError as error:
        raise StorageError(
            f"cannot write {work}: {error.strerror or error}; make room there or choose another folder, and "
            "run the same again"
        ) from error
