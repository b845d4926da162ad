"""Changes of the file system: errors with remedies, files that appear whole, folders that replace others."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from palm.core.errors import StorageError
from palm.core.files.checksum import checksum

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    getattr(errno, "EDQUOT", -1): "the disk quota is used up; free some space",
    errno.EROFS: "the file system is read-only; mount it for writing, or give a folder elsewhere",
    errno.EIO: "the disk reports an error; look at its state before you go on",
    errno.EACCES: "permission denied; give a folder that can be written",
    errno.EPERM: "not permitted; give a folder that can be written",
}
"""Error number -> what it means and what to do."""

WRITTEN = ".palm-files.jsonl"
"""The record of what palm wrote into a folder: a line for each file, with its size and SHA-256."""

UNFINISHED = ".palm-unfinished"
"""Mark of a folder that palm is filling."""

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


def is_plain(path: Path) -> bool:
    """Tell whether a name is that of a regular file; links are not followed."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def has_link(path: Path, folder: Path) -> bool:
    """Tell whether the way from a folder to a path below it, or the path itself, is a link."""
    return any(
        place.is_symlink()
        for place in (path, *path.parents)
        if place.is_relative_to(folder) and place != folder
    )


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file at its end, and make it where it is missing.

    Raises:
        OSError: it cannot be written; or it is a link, a device, a FIFO or a file with a second name.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    # Without O_NONBLOCK, a FIFO would wait for a reader.
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    file = os.fdopen(os.open(path, flags, 0o666), "ab")
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        file.close()
        raise OSError(errno.EEXIST, "not a file of palm's own", str(path))
    return file


def _written(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the folder's record about a file; what is damaged in it counts for nothing."""
    record = path.with_name(WRITTEN)
    if not is_plain(record):
        return []
    lines = []
    for text in record.read_bytes().splitlines():
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict) and line.get("name") == path.name:
                lines.append(line)
    return lines


def mark_written(path: Path, content: Path | None = None, grows: bool = False) -> None:
    """Enter a file into its folder's record, before it gets its name.

    Args:
        path: the file.
        content: where its content lies now; None for a temporary, which may be removed whatever it holds.
        grows: lines will be appended to it.
    """
    line: dict[str, Any] = {"name": path.name}
    if content is not None:
        line |= {"size": content.stat().st_size, "sha256": checksum(content), "grows": grows}
    if line not in _written(path):
        with open_to_append(path.with_name(WRITTEN)) as record:
            record.write(json.dumps(line).encode() + b"\n")


def is_temporary(path: Path) -> bool:
    """Tell whether palm gave this name to something unfinished, or moved aside."""
    return any("sha256" not in line for line in _written(path))


def is_written(path: Path) -> bool:
    """Tell whether palm wrote a file under this name that nobody has changed since."""
    if not is_plain(path):
        return False
    size = path.stat().st_size
    return any(
        (length == size or (line["grows"] and length < size))
        and checksum(path, length=length) == line["sha256"]
        for line in _written(path)
        if "sha256" in line and isinstance(length := line.get("size"), int) and length >= 0
    )


def has_changed(path: Path) -> bool:
    """Tell whether palm wrote a file under this name as a whole, and it is no longer what palm wrote."""
    digests = [line["sha256"] for line in _written(path) if "sha256" in line and not line.get("grows")]
    return bool(digests) and checksum(path) not in digests


def check_replaceable(path: Path) -> None:
    """Check that a file may be written, and replaced where there is one.

    Raises:
        StorageError: palm did not write what is there, or somebody has changed it since.
    """
    if os.path.lexists(path) and not is_written(path):
        kind = "was not written by palm, or has been changed since" if is_plain(path) else "is no plain file"
        raise StorageError(f"{path} {kind}; it is not replaced: move it elsewhere, or give another place")


def remove_written(path: Path) -> None:
    """Remove a file if palm wrote it and nobody has changed it since."""
    if is_written(path):
        remove(path)


@contextmanager
def write_atomically(path: Path, grows: bool = False) -> Iterator[Path]:
    """Yield a temporary file to write, which takes the place of `path` when the block ends well.

    Args:
        path: the file; one that is there must be palm's own.
        grows: lines will be appended to it.

    Raises:
        StorageError: the place cannot be written, or is not palm's; what stood there before is whole.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    # A folder that appears as a whole has a manifest in place of a record.
    is_inside = any((folder / UNFINISHED).exists() for folder in path.parents)
    with wrap_write_errors(path):
        check_replaceable(path)
        if not is_inside:
            if is_temporary(part):  # of a process with the same number
                remove(part)
            if not os.path.lexists(part):
                mark_written(part)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield part
            flush(part)
            check_replaceable(path)  # hours may lie between
            if not is_inside:
                mark_written(path, part, grows)
            part.replace(path)
        finally:
            remove(part)


def write_text(path: Path, text: str, grows: bool = False) -> None:
    """Write a UTF-8 file that appears whole; arguments and errors as in `write_atomically`."""
    with write_atomically(path, grows) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented UTF-8 JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that it holds, as far as the system allows it.

    Links are not followed, and special files stay.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif is_plain(path) or path.is_symlink():
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
        mark_written(old)
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
    if aside.is_dir() and not path.exists() and is_temporary(aside):
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
    """Return the directories `<start><number>` in a folder, by number; links to others are none."""
    return {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(re.escape(start) + r"(\d+)", path.name)) and not path.is_symlink()
    }
