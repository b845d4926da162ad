"""The folder beside a model's own in which it is gathered, by one process at a time."""

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
    """Provide the folder `<folder>.part` to gather files in; a second process waits.

    Afterwards `files/` in it is kept for as long as it holds something, everything else is removed.

    Raises:
        StorageError: it cannot be written.
    """
    work, lock = (folder.with_name(f"{folder.name}.{end}") for end in ("part", "lock"))
    try:
        make_folder(folder.parent)
        with within(folder.parent), locked(lock, f"downloading {folder}"):
            if not is_plain(work / UNFINISHED) and any(not path.is_dir() for path in work.rglob("*")):
                raise StorageError(f"{work} holds files that palm did not write; move it elsewhere")
            make_folder(work)
            open_to_append(work / UNFINISHED).close()
            remove(work / "unpacked")
            make_folder(work / "files")
            try:
                yield work
            finally:
                remove_empty(work / "files")
                remove(work / "unpacked" if (work / "files").is_dir() else work)
                # While it is held, so that whoever waits for it finds it gone and makes a new one. Windows
                # does not remove a file that is open; there it stays.
                remove(lock)
    except OSError as error:
        raise StorageError(
            f"cannot write {work}: {error.strerror or error}; make room there or choose another folder, and "
            "run the same again"
        ) from error
