"""Reading of untrusted files: every failure is an error of palm, and sizes are bounded."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from palm.core.errors import DataError, PalmError, StorageError

MAX_JSON = 1 << 24
"""16 MiB, a hundred times what any description has; as Python's objects it takes up to 25 times as much."""

MAX_DIGITS = 400
"""Digits of a whole number; no float64 has more, and Python's own limit depends on how it was started."""

_LONGEST = 500
"""Characters of a reason in a message."""

POINTER = "it is a pointer of Git LFS, not the file itself; git lfs pull fetches that"

_LEADS_OUT = re.compile(r"[\\:\0]")
"""What Windows would read as another folder or drive, and what no file system takes."""


@contextmanager
def wrap_read_errors(place: object, form: str = "", error: type[PalmError] = StorageError) -> Iterator[None]:
    """Make everything that goes wrong while foreign bytes are read an error of palm that names them.

    What malformed bytes raise in parsers (their own, numpy's, a library's) cannot be listed, so all of it
    is caught here, once for every format; the original is the error's `__cause__`. Errors of palm pass, and
    so does MemoryError: sizes are bounded before anything is allocated, so it is the machine's trouble.

    Args:
        place: the file.
        form: what it is read as (" as a Paddle variable"), or what of it (" the vocabulary").
        error: what to raise; the messages of a DataError begin with their place.
    """
    message = f"{place}: cannot read{form}" if error is DataError else f"cannot read {place}{form}"
    try:
        yield
    except (PalmError, MemoryError):
        raise
    except Exception as problem:
        reason = POINTER if isinstance(place, Path) and _names_pointer(place) else explained(problem)
        raise error(f"{message}: {reason}") from problem
    except BaseException as problem:
        # The library `tokenizers` says so that its own code has broken; the class is no Exception.
        if type(problem).__name__ != "PanicException":
            raise
        raise error(f"{message}: {explained(problem)}") from problem


def is_pointer(start: bytes) -> bool:
    """Tell whether a file that begins so is one of Git LFS, in place of a large file."""
    return start.startswith(b"version https://git-lfs.github.com/spec/")


def _names_pointer(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return is_pointer(file.read(64))
    return False


def explained(problem: BaseException) -> str:
    """The reason why foreign bytes could not be read, in a line."""
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, KeyError):
        return f"{problem} is missing"
    if isinstance(
        problem, AttributeError | TypeError | AssertionError
    ):  # a value of another kind than expected
        return f"it is malformed ({problem or type(problem).__name__})"
    if isinstance(problem, struct.error | EOFError):
        return f"it is cut short, or something else ({problem})"
    if isinstance(problem, json.JSONDecodeError):
        return f"it is not JSON: {problem}"
    if isinstance(problem, UnicodeDecodeError):
        byte = problem.object[problem.start]
        line = problem.object[: problem.start].count(b"\n") + 1
        return f"it is not UTF-8 text: byte {problem.start}, in line {line}, is {byte:#04x}; save it as UTF-8"
    # torch writes the frames of its own code below the first line.
    return next(iter(str(problem).splitlines()), "")[:_LONGEST] or type(problem).__name__


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """The content of a file that is small by its nature.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than `limit` bytes, or no plain file.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no plain file")
    with path.open("rb") as file:
        # One byte more tells that there are more; the size that the system gives may change meanwhile.
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB, more than any such file has")
    if is_pointer(data):
        raise ValueError(POINTER)
    return data


def parse_json(data: bytes, unique: bool = False) -> Any:
    """The value of a JSON text in UTF-8; with `unique`, no object may have a key twice.

    Raises:
        ValueError: it is something else, has a number of more than `MAX_DIGITS` digits or half a character.
        RecursionError: it is nested deeper than Python's stack.
    """
    # Editors on Windows put a byte-order mark in front, which the standard's parser refuses.
    text = data.decode("utf-8-sig")
    value = json.loads(text, parse_int=_integer, object_pairs_hook=unique_keys if unique else None)
    if "\\u" in text:  # an escaped half of a surrogate pair could be read, but never written or printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its pairs.

    Raises:
        ValueError: a key is there twice; names it.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has {', '.join(repr(key) for key in found if keys.count(key) > 1)} twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits; the most are {MAX_DIGITS}")
    return int(digits)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: missing, not JSON, or larger than any that palm or others write.
    """
    with wrap_read_errors(path):
        return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        StorageError: as `read_json`, or it holds something else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise StorageError(f"cannot read {path}: it should hold a JSON object, not {type(content).__name__}")
    return content


def printable(text: str) -> str:
    """Text of others for a terminal: what would steer it, or cannot be written, as its escape.

    Line ends and tabs stay.
    """
    return "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1]
        for character in text
    )


def is_inside(name: object) -> bool:
    """Tell whether a name is that of something below a folder, as far as the name alone tells."""
    if not isinstance(name, str) or not name or _LEADS_OUT.search(name):
        return False
    place = PurePosixPath(name)
    return ".." not in place.parts and not place.is_absolute()


def resolve_inside(folder: Path, name: object) -> Path:
    """The file that something in a directory names, which must lie in it.

    Symbolic links may lead to other places of the directory; and, where the directory is one of Hugging
    Face's cache, to the cache's `blobs`, of which it consists.

    Raises:
        StorageError: the name leads out of the directory, or to no plain file.
    """
    if not isinstance(name, str) or not is_inside(name):
        raise StorageError(f"{folder} is unsafe: it names the file {name!r}, which would lie outside of it")
    path = folder / name
    root = folder.resolve()
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    if not any(path.resolve().is_relative_to(place) for place in roots):
        raise StorageError(f"{folder} is unsafe: it names the file {name!r}, which lies outside of it")
    if not path.is_file():
        raise StorageError(f"{folder} is damaged: {name} is missing; use another, or copy it anew")
    return path
