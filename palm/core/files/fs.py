"""What the disk does and answers: errors in a user's words, names that change hands in one moment."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from palm.core.errors import StorageError

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    getattr(errno, "EDQUOT", -1): "the disk quota is used up; free some space",
    errno.EROFS: "the file system is read-only; mount it for writing, or give a folder elsewhere",
    errno.EIO: "the disk reports an error; look at its state before you go on",
    errno.EACCES: "permission denied; give a folder that can be written",
    errno.EPERM: "not permitted; give a folder that can be written",
}
"""Error number -> what it means and what to do."""

_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it, what the operating system refuses becomes an error that names `path` and the remedy.

    Raises:
        StorageError: in place of `OSError`, and of what safetensors makes of one.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        if number is None:  # safetensors has the number in its text alone: "… (os error 28)"
            number = next((code for code in REMEDIES if f"(os error {code})" in str(error)), None)
        reason = getattr(error, "strerror", None) or error
        if file := getattr(error, "filename", None):
            reason = f"{reason}: {file}"
        reason = REMEDIES.get(number, f"{reason}; give a folder that can be written")
        # A folder that is being filled has another name for the time than the one that the user knows.
        parts = [re.sub(r"^\.(.+)\.[A-Za-z0-9]*-\d+\.part$", r"\1", part) for part in path.parts]
        raise StorageError(f"cannot write {Path(*parts)}: {reason}") from error


def flush(file: Path) -> None:
    """Have a file's content on the disk itself, as far as the system can promise that."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def flush_folder(folder: Path) -> None:
    """Have a folder's entries on the disk itself; where folders cannot be flushed, nothing happens."""
    with suppress(OSError):  # Windows and some network file systems refuse
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def temporary_name(path: Path) -> Path:
    """A sibling of `path` for this process to write; the name tells host and process."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}.part")


def left_by_the_dead(path: Path) -> list[Path]:
    """The temporary siblings of `path` that processes of this host left when they died.

    Names begin as `temporary_name` makes them; where a process needs several, `.` and a word may follow.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_host()}-(\d+)\.part(?:\.\w+)?")
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    matches = ((sibling, pattern.fullmatch(sibling.name)) for sibling in siblings)
    return [sibling for sibling, match in matches if match and not is_alive(int(match[1]))]


def is_alive(process: int) -> bool:
    """Whether this host has a process of that number."""
    if sys.platform == "win32":
        return True  # there is no question that does no harm
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _host() -> str:
    return "".join(letter for letter in socket.gethostname() if letter.isalnum())[:32]


def put_in_place(new: Path, path: Path) -> Path | None:
    """Give the folder `new` the name `path`; a folder that has it is never absent on the way.

    Where the system cannot exchange two names, the old folder is first called `aside_name(path)`, which
    must be free; a process that dies then leaves it for `heal`.

    Returns:
        Where what stood at `path` lies now; None where nothing stood there.
    """
    old = None
    if not path.exists():
        new.replace(path)
    elif _exchange(new, path):
        old = new
    else:
        old = aside_name(path)
        for last in (False, False, True):
            path.rename(old)
            try:
                new.rename(path)
                break
            except OSError:
                # A reader that found no `path` has put it back (`heal`); or the disk refuses.
                heal(path)
                if last:
                    raise
    flush_folder(path.parent)
    return old


def heal(path: Path) -> None:
    """Put the old folder back where a process died between moving it aside and naming the new one."""
    aside = aside_name(path)
    if aside.is_dir() and not path.exists():
        with suppress(OSError):  # somebody else was first, or may write here and we may not
            aside.rename(path)


def aside_name(path: Path) -> Path:
    """What a folder is called for the moment in which another takes its name."""
    return path.with_name(f".{path.name}.old")


def _exchange(one: Path, other: Path) -> bool:
    """Whether two names were exchanged, in one moment."""
    call = _renameat2()
    if call is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    result: int = call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)
    if result == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
        return False  # a file system that does not know how
    raise OSError(number, os.strerror(number), str(other))


@cache
def _renameat2() -> Any:
    """The system's function, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call
