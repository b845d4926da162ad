"""Files that appear whole, folders that replace others, and the record of what palm wrote."""

from __future__ import annotations

import filecmp
import json
import os
import re
import socket
import sys
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
"""The record of what palm wrote into a folder: a line for each file, with its size and SHA-256."""

UNFINISHED = ".palm-unfinished"
"""Mark of a folder whose whole content is palm's."""

OLD = ".palm-old"
"""The name in a stage of the folder whose place another takes."""

_LINE = {"name": str, "kind": str, "grows": bool, "size": int, "sha256": str}
"""A line of the record."""

_own: set[Path] = set()
"""Places that this process has written; what stands there is not an earlier run's."""


def tell_replaced(path: Path, was_there: bool) -> None:
    """Log that what an earlier run wrote at a place was replaced, or removed, but for hidden files."""
    place = path.absolute()
    if was_there and place not in _own and not path.name.startswith("."):
        logger.info("replaced what palm wrote before: %s", path)
    _own.add(place)


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


def _written(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the folder's record about a file; what is damaged in it counts for nothing."""
    record = path.with_name(WRITTEN)
    if not is_plain(record):
        return []
    lines = []
    for text in record.read_bytes().splitlines():
        with suppress(ValueError, TypeError, RecursionError):
            line = json.loads(text)
            # By type and not with isinstance, for which true is a number.
            types = {name: type(value) for name, value in dict(line).items()}
            if types == _LINE and line["name"] == path.name:
                lines.append(line)
    return lines


def mark_written(path: Path, content: Path, grows: bool = False, kind: str = "") -> None:
    """Enter a file into its folder's record, before it gets its name.

    Args:
        path: the file.
        content: where its content lies now.
        grows: lines will be appended to it.
        kind: as in `write_atomically`.
    """
    line = {"name": path.name, "kind": kind or path.name, "grows": grows}
    line |= {"size": content.stat().st_size, "sha256": checksum(content)}
    # A process that dies before the file has its name leaves a line too many, which matches nothing else.
    if line not in _written(path):
        with open_to_append(path.with_name(WRITTEN)) as record:
            record.write(json.dumps(line).encode() + b"\n")


def is_written(path: Path, kind: str = "") -> bool:
    """Tell whether palm wrote a file of this kind under this name, and nobody has changed it since."""
    if not is_plain(path):
        return False
    size = path.stat().st_size
    return any(
        line["kind"] == (kind or path.name)
        and (line["size"] == size or (line["grows"] and 0 <= line["size"] < size))
        and checksum(path, length=line["size"]) == line["sha256"]
        for line in _written(path)
    )


def has_changed(path: Path) -> bool:
    """Tell whether palm wrote a file under this name as a whole, and it is no longer what palm wrote."""
    digests = [line["sha256"] for line in _written(path) if not line["grows"]]
    return bool(digests) and checksum(path) not in digests


def check_replaceable(path: Path, kind: str = "") -> None:
    """Check that a file may be written, and replaced where there is one.

    Raises:
        StorageError: palm wrote no file of this kind there, or somebody has changed it since.
    """
    if os.path.lexists(path) and not is_written(path, kind):
        writer = f"palm as {kind}" if kind else "palm"
        was = f"was not written by {writer}, or has been changed since"
        reason = was if is_plain(path) else "is no plain file"
        raise StorageError(f"{path} {reason}; it is not replaced: move it elsewhere, or give another place")


def check_not_read(path: Path, reads: Iterable[object]) -> None:
    """Check that a file or folder to be written is not what it is made of, and does not hold it.

    Raises:
        StorageError: it is, or does.
    """
    for source in reads:
        if isinstance(source, str | Path) and Path(source).resolve().is_relative_to(path.resolve()):
            raise StorageError(f"{path} would replace {source}, which is read; give another place")


def remove_written(path: Path) -> None:
    """Remove a file if palm wrote it and nobody has changed it since."""
    if is_written(path):
        remove(path)


@contextmanager
def write_atomically(path: Path, grows: bool = False, kind: str = "") -> Iterator[BinaryIO]:
    """Yield a new file to write, which takes the place of `path` when the block ends well.

    Args:
        path: the file; one that is there must be palm's own.
        grows: lines will be appended to it.
        kind: the name that palm would have given it, where the user gives the name. A file of another kind is
            not replaced.

    Raises:
        StorageError: the place cannot be written, or is not palm's; what stood there before is whole.
    """
    # A folder that appears as a whole has a manifest in place of a record.
    is_inside = any((folder / UNFINISHED).exists() for folder in path.parents)
    with wrap_write_errors(path):
        check_replaceable(path, kind)
        with staged(path) as stage, new_file(part := stage / path.name) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            check_replaceable(path, kind)  # hours may lie between
            if not is_inside:
                mark_written(path, part, grows, kind)
            file.close()  # Windows renames no open file
            is_other = path.exists() and not filecmp.cmp(path, part, shallow=False)
            rename(part, path)
            tell_replaced(path, is_other)


def write_text(path: Path, text: str, grows: bool = False, kind: str = "") -> None:
    """Write a UTF-8 file that appears whole; arguments and errors as in `write_atomically`."""
    with write_atomically(path, grows, kind) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any, kind: str = "") -> None:
    """Write a value as indented UTF-8 JSON; `kind` as in `write_text`."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n", kind=kind)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Provide a folder beside `path`, in which it is made before it gets its name; afterwards it is removed.

    That of a process that died is removed by the next one for the same path. It is beside the path, since a
    rename takes one moment only within a file system.
    """
    stage = stage_name(path)
    for left in (*filter(is_stale, stages_of(path)), stage):  # of a process that had the same number
        clear_stage(left)
    new_folder(stage)
    try:
        new_file(stage / UNFINISHED).close()
        yield stage
    finally:
        clear_stage(stage)


def clear_stage(stage: Path) -> None:
    """Remove a stage, its mark last, so that the next process knows what one that dies meanwhile leaves."""
    if stage.is_symlink():
        return
    if is_plain(stage / UNFINISHED):
        with suppress(OSError):  # it is gone already
            for place in stage.iterdir():
                if place.name != UNFINISHED:
                    remove(place)
        remove(stage / UNFINISHED)
    remove_empty(stage)


def stage_name(path: Path) -> Path:
    """Return a sibling of `path` for this process; the name tells host and process."""
    path = path if path.name else path.absolute()
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}.part")


def stages_of(path: Path) -> list[Path]:
    """Return what has the name of a stage for `path`, of any process."""
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    matches = ((sibling, STAGE.fullmatch(sibling.name)) for sibling in siblings)
    return [sibling for sibling, match in matches if match and match[1] == path.name]


def is_stale(stage: Path) -> bool:
    """Tell whether a stage is that of a process of this host that has died."""
    match = STAGE.fullmatch(stage.name)
    return match is not None and match[2] == _host() and not is_alive(int(match[3]))


def is_alive(process: int) -> bool:
    """Tell whether this host has a process of that number."""
    with suppress(PermissionError):  # a process of another user
        if sys.platform != "win32":  # signal 0 would end the process there
            try:
                os.kill(process, 0)
            except (ProcessLookupError, OverflowError):  # the number stands in the name of a file
                return False
    return True


def _host() -> str:
    return "".join(letter for letter in socket.gethostname() if letter.isalnum())[:32]


def replace_directory(new: Path, path: Path) -> bool:
    """Give a folder of a stage the name `path`; a folder that has it is never absent on the way.

    Where the system cannot exchange two names, the old folder goes to the stage first; a process that dies
    then leaves it for `recover`.

    Returns:
        Whether there was one.
    """
    is_there = path.exists()
    if not is_there:
        rename(new, path)
    elif not exchange(new, path):
        # Between the two a reader may find no `path`, and put the old folder back: then it is tried again.
        for last in (False, False, True):
            rename(path, new.with_name(OLD))
            try:
                rename(new, path)
                break
            except OSError:
                # A reader that found no `path` has put it back (`recover`); or the disk refuses.
                recover(path)
                if last:
                    raise
    flush_folder(path.parent)
    return is_there


def recover(path: Path) -> None:
    """Put the old folder back where a process died between moving it aside and naming the new one."""
    for stage in () if path.exists() else stages_of(path):
        if is_plain(stage / UNFINISHED):
            with suppress(OSError):  # there is none, or somebody else was first, or we may not write here
                rename(stage / OLD, path)


def numbered(folder: Path, start: str) -> dict[int, Path]:
    """Return the directories `<start><number>` in a folder, by number; links to others are none."""
    return {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(re.escape(start) + r"(\d+)", path.name)) and not path.is_symlink()
    }
