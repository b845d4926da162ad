"""The folder beside a model's own in which its files are collected, by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palm.core.errors import StorageError
from palm.core.files.door import is_plain, make_folder, open_to_append, remove, remove_empty, within
from palm.core.files.fs import UNFINISHED
from palm.core.files.locking import locked


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Provide the folder `<folder>.part` to collect files in; a second process waits.

    Afterwards its `files/` is kept if it is not empty, and everything else is removed.

    Raises:
        StorageError: if it cannot be written.
    """
    work, lock = (folder.with_name(f"{folder.name}.{suffix}") for suffix in ("part", "lock"))
    try:
        make_folder(folder.parent)
        with within(folder.parent), locked(lock, f"downloading {folder}"):
            if not is_plain(work / UNFINISHED) and any(not path.is_dir() for path in work.rglob("*")):
                raise StorageError(f"{work} contains files that palm did not write; move it elsewhere")
            make_folder(work)
            open_to_append(work / UNFINISHED).close()
            remove(work / "unpacked")
            make_folder(work / "files")
            try:
                yield work
            finally:
                remove_empty(work / "files")
                remove(work / "unpacked")
                if not (work / "files").is_dir():
                    remove(work / UNFINISHED)
                    remove_empty(work)  # not with a file that somebody put there
                # Removed while it is held, so a waiting process finds it gone and creates a new one. Windows
                # cannot remove an open file; there it remains.
                remove(lock)
    except OSError as error:
        raise StorageError(
            f"cannot write {work}: {error.strerror or error}; free some space or choose another folder, and "
            "run the command again"
        ) from error
