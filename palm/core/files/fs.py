"""Changes of the file system: errors with remedies, files that appear whole, folders that replace others."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
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
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an error that names `path` and the remedy.

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
    """Flush a file's content to the disk itself, as far as the system can promise that."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk itself, where the system can."""
    with suppress(OSError):  # Windows and some network file systems refuse
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which takes the place of `path` when the block ends well.

    Raises:
        StorageError: the place cannot be written; what stood there before is whole.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with wrap_write_errors(path):
        try:
            yield part
            flush(part)
            part.replace(path)
        finally:
            remove(part)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file that appears whole; errors as in `write_atomically`."""
    with write_atomically(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented UTF-8 JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that it holds, as far as the system allows it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def hard_link(source: Path, path: Path) -> bool:
    """Give a file a second name; return False where the file system, or the system, refuses."""
    try:
        path.hardlink_to(source)
    except (OSError, NotImplementedError):
        return False
    return True


def temporary_name(path: Path) -> Path:
    """Return a sibling of `path` for this process to write; the name tells host and process."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}.part")


def stale_temporaries(path: Path) -> list[Path]:
    """Return the temporary siblings of `path` that processes of this host left when they died.

    Names begin as `temporary_name` makes them; where a process needs several, `.` and a word may follow.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_host()}-(\d+)\.part(?:\.\w+)?")
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    matches = ((sibling, pattern.fullmatch(sibling.name)) for sibling in siblings)
    return [sibling for sibling, match in matches if match and not is_alive(int(match[1]))]


def is_alive(process: int) -> bool:
    """Tell whether this host has a process of that number."""
    if sys.platform == "win32":
        return True  # signal 0 would end the process there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _host() -> str:
    return "".join(letter for letter in socket.gethostname() if letter.isalnum())[:32]


def replace_directory(new: Path, path: Path) -> Path | None:
    """Give the folder `new` the name `path`; a folder that has it is never absent on the way.

    Where the system cannot exchange two names, the old folder is first called `aside_name(path)`, which
    must be free; a process that dies then leaves it for `recover`.

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
                # A reader that found no `path` has put it back (`recover`); or the disk refuses.
                recover(path)
                if last:
                    raise
    flush_folder(path.parent)
    return old


def recover(path: Path) -> None:
    """Put the old folder back where a process died between moving it aside and naming the new one."""
    aside = aside_name(path)
    if aside.is_dir() and not path.exists():
        with suppress(OSError):  # somebody else was first, or may write here and we may not
            aside.rename(path)


def aside_name(path: Path) -> Path:
    """Return the name of a folder for the moment in which another takes its place."""
    return path.with_name(f".{path.name}.old")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one moment; return False where the file system cannot."""
    call = _renameat2()
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
        return False  # a file system that does not know how
    raise OSError(number, os.strerror(number), str(other))


@cache
def _renameat2() -> Any:
    """Return the system's function, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call


def numbered(folder: Path, start: str) -> dict[int, Path]:
    """Return the directories `<start><number>` in a folder, by number."""
    return {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(re.escape(start) + r"(\d+)", path.name))
    }
