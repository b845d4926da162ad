"""Changes to the disk, made by names in open folders, so that a link put there meanwhile is not followed."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from palm.core.files.write_errors import wrap_write_errors

_HAS_FOLDERS = os.open in os.supports_dir_fd
"""True if the system takes names relative to open folders. Elsewhere (Windows) links are looked for first."""

_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BYTES = getattr(os, "O_BINARY", 0)
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)

# A list, because blocks for the same folder may be nested.
_named: list[Path] = []


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """Follow no link and enter no mounted disk below a folder that the user named, within this context."""
    folder = folder.absolute()
    _named.append(folder)
    try:
        yield
    finally:
        _named.remove(folder)


@contextmanager
def _parent(path: Path) -> Iterator[tuple[int | None, str]]:
    """Open the parent folder of a path; yield its descriptor and the name of the file in it.

    Raises:
        OSError: it does not exist; or a link, a mounted disk or `..` lies below a folder of `within`.
    """
    path = path.absolute()
    # All matches are ancestors of the path, so the smallest one is the outermost.
    root = min((folder for folder in _named if folder in path.parents), default=path.parent)
    *way, name = path.relative_to(root).parts or ("..",)
    if ".." in (*way, name):
        raise OSError(errno.EACCES, "the name leads out of its folder", str(path))
    if not _HAS_FOLDERS:
        if has_link(path.parent, root):
            raise OSError(errno.ELOOP, "a link is on the way", str(path))
        yield None, str(path)
        return
    folder = os.open(root, _FOLDER)
    try:
        # One name at a time, each in the open folder: if a folder is replaced by a link meanwhile, O_NOFOLLOW
        # stops us, where a whole path would follow the link.
        for step in way:
            below = _entered(folder, step, path)
            os.close(folder)
            folder = below
        yield folder, name
    finally:
        os.close(folder)


def _entered(folder: int, name: str, path: Path) -> int:
    try:
        below = os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)
    except NotADirectoryError as error:
        raise OSError(error.errno, f"{name} is a link or a file", str(path)) from error
    # Removing an old run must not empty a disk that is mounted in its folder.
    if os.fstat(below).st_dev != os.fstat(folder).st_dev:
        os.close(below)
        raise OSError(errno.EXDEV, f"another disk is mounted at {name}", str(path))
    return below


def has_link(path: Path, folder: Path) -> bool:
    """Check whether a path below a folder, or any folder between the two, is a link."""
    return any(
        place.is_symlink()
        for place in (path, *path.parents)
        if place.is_relative_to(folder) and place != folder
    )


def is_plain(path: Path) -> bool:
    """Check whether a path is a regular file; links are not followed."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def new_folder(folder: Path) -> None:
    """Create a folder; its name must be free.

    Raises:
        OSError: the name is taken, or the folder above it cannot be written.
    """
    with _parent(folder) as (parent, name):
        os.mkdir(name, dir_fd=parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents where they are missing.

    Raises:
        StorageError: it cannot be created, or something else has its name.
    """
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    with wrap_write_errors(folder):
        for place in reversed(missing):
            with suppress(FileExistsError):  # another process was first
                new_folder(place)
        with _parent(folder / "inside"):
            pass


def new_file(path: Path) -> BinaryIO:
    """Open a new file; its name must be free.

    Raises:
        OSError: the name is taken, or the folder cannot be written.
    """
    with _parent(path) as (parent, name):
        # O_EXCL also refuses links, whatever they point to.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BYTES
        return os.fdopen(os.open(name, flags, 0o666, dir_fd=parent), "wb")


def open_to_append(path: Path) -> BinaryIO:
    """Open a file for appending, and create it if it is missing.

    Raises:
        OSError: it cannot be written; or it is a link, a device, a FIFO or a file with several hard links.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK | _BYTES | getattr(os, "O_NONBLOCK", 0)
    with _parent(path) as (parent, name):
        file = os.fdopen(os.open(name, flags, 0o666, dir_fd=parent), "ab")
    about = os.fstat(file.fileno())
    # With a second hard link, it may be a file of the user's elsewhere.
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        file.close()
        raise OSError(errno.EEXIST, "not a file that palm wrote", str(path))
    return file


def copy(source: Path, path: Path) -> None:
    """Copy a file's content into a new one.

    Raises:
        OSError: the name is taken, `source` cannot be read, or `path` cannot be written.
    """
    with source.open("rb") as content, new_file(path) as file:
        shutil.copyfileobj(content, file, 1 << 20)


def make_executable(file: Path) -> None:
    """Make a file that palm has just written executable for everybody."""
    file.chmod(0o755)


def hard_link(source: Path, path: Path) -> bool:
    """Hard-link a file; return False if the system or the file system refuses."""
    try:
        with _parent(source) as (here, old), _parent(path) as (there, new):
            os.link(old, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except (OSError, NotImplementedError):
        return False
    return True


def rename(path: Path, new: Path) -> None:
    """Rename a file or folder; a file or an empty folder with the new name is replaced.

    Raises:
        OSError: the system refuses.
    """
    with _parent(path) as (here, old), _parent(new) as (there, name):
        os.replace(old, name, src_dir_fd=here, dst_dir_fd=there)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically; return False if the system or the file system refuses."""
    call = _renameat2()
    with _parent(one) as (here, name), _parent(other) as (there, second):
        return call is not None and call(here, os.fsencode(name), there, os.fsencode(second), _EXCHANGE) == 0


@cache
def _renameat2() -> Any:
    """Return the system's function, or None."""
    is_linux = sys.platform.startswith("linux")
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if is_linux else None


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its contents, as far as the system allows it.

    Links are not followed; special files and mounted disks stay.
    """
    with suppress(OSError), _parent(path) as (parent, name):
        if parent is None and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            _remove(parent, name)


def _remove(parent: int | None, name: str) -> None:
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode):
        os.unlink(name, dir_fd=parent)
    elif stat.S_ISDIR(about.st_mode) and parent is not None and about.st_dev == os.fstat(parent).st_dev:
        folder = os.open(name, os.O_DIRECTORY | _NO_LINK, dir_fd=parent)  # O_PATH could not be listed
        try:
            for each in os.listdir(folder):  # noqa: PTH208
                with suppress(OSError):
                    _remove(folder, each)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)


def remove_empty(folder: Path) -> None:
    """Remove an empty folder, if the system allows it."""
    with suppress(OSError), _parent(folder) as (parent, name):
        os.rmdir(name, dir_fd=parent)
