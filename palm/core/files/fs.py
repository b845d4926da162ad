"""Atomic writes of files, replacement of folders, and the record of what palm wrote."""

from __future__ import annotations

import filecmp
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from palm.core.errors import StorageError
from palm.core.files.checksum import checksum
from palm.core.files.door import (
    exchange,
    is_plain,
    new_file,
    new_folder,
    open_to_append,
    remove,
    remove_empty,
    rename,
)
from palm.core.files.write_errors import STAGE, wrap_write_errors
from palm.core.logging import logger

WRITTEN = ".palm-files.jsonl"
"""The record of what palm wrote into a folder: one line for each file, with its size and SHA-256."""

UNFINISHED = ".palm-unfinished"
"""Mark of a folder whose entire content is palm's."""

OLD = ".palm-old"
"""The name in a stage of the folder that is being replaced."""

_LINE = {"name": str, "kind": str, "grows": bool, "size": int, "sha256": str}
"""Fields and types of a line of the record."""

_own: set[Path] = set()
"""Paths that this process has written, and that are therefore not from an earlier run."""

_stages: set[Path] = set()
"""Stages of this process."""

_lock = threading.Lock()


def log_replaced(path: Path, was_there: bool) -> None:
    """Log that something written by an earlier run was replaced or removed, except for hidden files."""
    place = path.absolute()
    if was_there and place not in _own and not path.name.startswith("."):
        logger.info("replaced what palm wrote before: %s", path)
    _own.add(place)


def flush(file: Path) -> None:
    """Flush a file's content to disk, as far as the system can guarantee it."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system supports it."""
    with suppress(OSError):  # Windows and some network file systems refuse
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _written(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the folder's record about a file; damaged lines are skipped."""
    record = path.with_name(WRITTEN)
    if not is_plain(record):
        return []
    lines = []
    for text in record.read_bytes().splitlines():
        with suppress(ValueError, TypeError, RecursionError):
            line = json.loads(text)
            # By exact type, because isinstance takes true for an integer.
            types = {name: type(value) for name, value in dict(line).items()}
            if types == _LINE and line["name"] == path.name:
                lines.append(line)
    return lines


def mark_written(path: Path, content: Path, grows: bool = False, kind: str = "") -> None:
    """Add a file to its folder's record, before it gets its final name.

    Args:
        path: the file.
        content: where its content is now.
        grows: lines will be appended to it.
        kind: as in `write_atomically`.
    """
    line = {"name": path.name, "kind": kind or path.name, "grows": grows}
    line |= {"size": content.stat().st_size, "sha256": checksum(content)}
    # If the process dies before the rename, the extra line matches no other file.
    if line not in _written(path):
        record = path.with_name(WRITTEN)
        with open_to_append(record) as file:
            is_cut_off = record.read_bytes()[-1:] not in (b"", b"\n")  # by a full disk
            file.write(b"\n" * is_cut_off + json.dumps(line).encode() + b"\n")


def is_written(path: Path, kind: str = "") -> bool:
    """Check whether palm wrote a file of this kind under this name, and it has not changed since."""
    if not is_plain(path):
        return False
    size = path.stat().st_size
    return any(
        line["kind"] == (kind or path.name)
        and (line["size"] == size or (line["grows"] and 0 < line["size"] < size))
        and checksum(path, length=line["size"]) == line["sha256"]
        for line in _written(path)
    )


def has_changed(path: Path) -> bool:
    """Check whether palm wrote a whole file under this name, and it has changed since."""
    digests = [line["sha256"] for line in _written(path) if not line["grows"]]
    return bool(digests) and checksum(path) not in digests


def check_replaceable(path: Path, kind: str = "") -> None:
    """Check that a file may be written, and replaced if it exists.

    Raises:
        StorageError: palm did not write it as a file of this kind, or it has changed since.
    """
    if os.path.lexists(path) and not is_written(path, kind):
        writer = f"palm as {kind}" if kind else "palm"
        was = f"was not written by {writer}, or has been changed since"
        reason = was if is_plain(path) else "is not a regular file"
        raise StorageError(f"{path} {reason}, so it will not be replaced; move it, or give another path")


def check_not_read(path: Path, reads: Iterable[object]) -> None:
    """Check that a file or folder to be written neither is nor contains one of its sources.

    Raises:
        StorageError: it does; the message names the source.
    """
    for source in reads:
        if isinstance(source, str | Path) and _is_in(Path(source).resolve(), path.resolve()):
            raise StorageError(f"writing {path} would replace its source, {source}; give another path")


def _is_in(source: Path, path: Path) -> bool:
    """Check whether a file is or lies in `path`, which may have several names, as where a disk is mounted."""
    with suppress(OSError):
        return any(path.samefile(place) for place in (source, *source.parents) if place.exists())
    return source.is_relative_to(path)


def remove_written(path: Path) -> None:
    """Remove a file if palm wrote it and it has not changed since."""
    if is_written(path):
        remove(path)


@contextmanager
def write_atomically(path: Path, grows: bool = False, kind: str = "") -> Iterator[BinaryIO]:
    """Yield a new file to write, which replaces `path` if the block succeeds.

    Args:
        path: the file; an existing one must have been written by palm.
        grows: lines will be appended to it.
        kind: palm's own name for the file, where the user chooses the name. A file of another kind is not
            replaced.

    Raises:
        StorageError: the file cannot be written, or the existing one is not palm's and stays as it was.
    """
    # Atomic directories have a manifest instead of a record.
    is_inside = any((folder / UNFINISHED).exists() for folder in path.parents)
    with wrap_write_errors(path):
        check_replaceable(path, kind)
        with staged(path) as stage, new_file(part := stage / path.name) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            check_replaceable(path, kind)  # hours may have passed since the first check
            if not is_inside:
                mark_written(path, part, grows, kind)
            file.close()  # Windows cannot rename an open file
            is_other = path.exists() and not filecmp.cmp(path, part, shallow=False)
            rename(part, path)
            log_replaced(path, is_other)


def write_text(path: Path, text: str, grows: bool = False, kind: str = "") -> None:
    """Write a UTF-8 file atomically; arguments and errors as in `write_atomically`."""
    with write_atomically(path, grows, kind) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any, kind: str = "") -> None:
    """Write a value as indented UTF-8 JSON, atomically; `kind` as in `write_atomically`."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n", kind=kind)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a folder beside `path` in which its new content is built; the folder is removed afterwards.

    The stage of a process that died is removed by the next one for the same path. It is beside the path
    because a rename is atomic only within a file system.

    Raises:
        StorageError: another thread of this process has a stage for this path.
    """
    stage = stage_name(path)
    with _only_thread(stage.absolute(), path):
        for left in (*filter(is_stale, stages_of(path)), stage):  # `stage`: of a process with the same PID
            clear_stage(left, path)
        new_folder(stage)
        try:
            new_file(stage / UNFINISHED).close()
            yield stage
        finally:
            clear_stage(stage, path)


@contextmanager
def _only_thread(stage: Path, path: Path) -> Iterator[None]:
    with _lock:
        if stage in _stages:
            raise StorageError(f"another thread of this program is writing {path}; give another path")
        _stages.add(stage)
    try:
        yield
    finally:
        _stages.remove(stage)


def clear_stage(stage: Path, path: Path) -> None:
    """Remove a stage for `path`, its mark last, so that the next process can finish if this one dies."""
    if _is_marked(stage):
        recover(path)
        if (stage / OLD).exists() and not path.exists():  # the system refused to put it back
            return
        with suppress(OSError):  # already removed
            for place in stage.iterdir():
                if place.name != UNFINISHED:
                    remove(place)
        remove(stage / UNFINISHED)
    remove_empty(stage)


def stage_name(path: Path) -> Path:
    """Return a sibling of `path` for this process, named after the host and the process."""
    path = path if path.name else path.absolute()
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}.part")


def stages_of(path: Path) -> list[Path]:
    """Return the stages for `path` of all processes."""
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    matches = ((sibling, STAGE.fullmatch(sibling.name)) for sibling in siblings)
    return [sibling for sibling, match in matches if match and match[1] == path.name]


def is_stale(stage: Path) -> bool:
    """Check whether a stage belongs to a dead process of this host."""
    match = STAGE.fullmatch(stage.name)
    return match is not None and match[2] == _host() and not is_alive(int(match[3]))


def is_alive(process: int) -> bool:
    """Check whether this host has a process with that PID."""
    with suppress(PermissionError):  # the process belongs to another user
        if sys.platform != "win32":  # signal 0 would end the process there
            try:
                os.kill(process, 0)
            except (ProcessLookupError, OverflowError):  # the PID comes from a file name
                return False
    return True


def _host() -> str:
    return "".join(letter for letter in socket.gethostname() if letter.isalnum())[:32]


def replace_directory(new: Path, path: Path) -> bool:
    """Rename a folder in a stage to `path`, replacing the folder there without a moment of absence.

    If the system cannot exchange two names, the old folder is first moved into the stage; if the process
    dies or is interrupted then, `recover` restores it.

    Returns:
        True if a folder was replaced.
    """
    is_there = path.exists()
    if not is_there:
        rename(new, path)
    elif not exchange(new, path):
        # Between the two renames a reader may find no `path` and put the old folder back: try again then.
        for last in (False, False, True):
            rename(path, new.with_name(OLD))
            try:
                rename(new, path)
                break
            except OSError:
                # Either a reader put the old folder back (`recover`), or the disk refuses.
                recover(path)
                if last:
                    raise
    flush_folder(path.parent)
    return is_there


def recover(path: Path) -> None:
    """Put the old folder back if a process died between moving it aside and renaming the new one."""
    for stage in () if path.exists() else stages_of(path):
        if _is_marked(stage):
            with suppress(OSError):  # nothing to restore, another process was first, or no permission
                rename(stage / OLD, path)


def _is_marked(stage: Path) -> bool:
    return not stage.is_symlink() and is_plain(stage / UNFINISHED)


def numbered(folder: Path, start: str) -> dict[int, Path]:
    """Return the directories `<start><number>` in a folder, by number; links do not count."""
    return {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(re.escape(start) + r"(\d+)", path.name)) and not path.is_symlink()
    }
