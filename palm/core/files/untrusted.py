"""Reading of untrusted files: every failure becomes a PalmError, and sizes are bounded."""

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
"""Bytes: 16 MiB, a hundred times any description; parsed, it takes up to 25 times as much memory."""

MAX_DIGITS = 400
"""Digits of an integer; no float64 has more, and Python's own limit depends on how it was started."""

_LONGEST = 500
"""Maximum number of characters of a reason in a message."""

POINTER = "it is a Git LFS pointer, not the file itself; run git lfs pull to fetch it"

_LEADS_OUT = re.compile(r"[\\:\0]")
"""Characters that Windows would take for another folder or drive, and NUL, which no file system allows."""


@contextmanager
def wrap_read_errors(place: object, form: str = "", error: type[PalmError] = StorageError) -> Iterator[None]:
    """Turn every exception raised while untrusted bytes are read into a PalmError that names the file.

    The exceptions that parsers (ours, numpy's, a library's) raise on malformed bytes cannot be listed, so all
    are caught here, once for every format; the original is the error's `__cause__`. A PalmError passes
    through, and so does MemoryError: sizes are bounded before allocation, so the machine is too small.

    Args:
        place: the file.
        form: its format (" as a Paddle variable"), or the part that is read (" the vocabulary").
        error: the class to raise; messages of a DataError begin with their place.
    """
    message = f"{place}: cannot read{form}" if error is DataError else f"cannot read {place}{form}"
    try:
        yield
    except (PalmError, MemoryError):
        raise
    except Exception as problem:
        reason = POINTER if isinstance(place, Path) and _names_pointer(place) else describe_error(problem)
        raise error(f"{message}: {reason}") from problem
    except BaseException as problem:
        # The library `tokenizers` raises this if its Rust code panics; it does not derive from Exception.
        if type(problem).__name__ != "PanicException":
            raise
        raise error(f"{message}: {describe_error(problem)}") from problem


def is_pointer(start: bytes) -> bool:
    """Check whether a file with this beginning is a Git LFS pointer."""
    return start.startswith(b"version https://git-lfs.github.com/spec/")


def _names_pointer(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return is_pointer(file.read(64))
    return False


def describe_error(problem: BaseException) -> str:
    """Return the reason why untrusted bytes could not be read, in one line."""
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, KeyError):
        return f"{problem} is missing"
    if isinstance(
        problem, AttributeError | TypeError | AssertionError
    ):  # a value of another kind than expected
        return f"it is malformed ({problem or type(problem).__name__})"
    if isinstance(problem, struct.error | EOFError):
        return f"it is truncated, or has another format ({problem})"
    if isinstance(problem, json.JSONDecodeError):
        return f"it is not JSON: {problem}"
    if isinstance(problem, UnicodeDecodeError):
        byte = problem.object[problem.start]
        line = problem.object[: problem.start].count(b"\n") + 1
        return f"it is not UTF-8 text: byte {problem.start}, in line {line}, is {byte:#04x}; save it as UTF-8"
    # torch puts a traceback of its own below the first line.
    return next(iter(str(problem).splitlines()), "")[:_LONGEST] or type(problem).__name__


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """Read a file that should be small.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than `limit` bytes, or not a regular file.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        # One byte more, to see whether there is more; the size from `stat` may change meanwhile.
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB, the limit for such files")
    if is_pointer(data):
        raise ValueError(POINTER)
    return data


def parse_json(data: bytes, unique: bool = False) -> Any:
    """Parse JSON in UTF-8; with `unique`, no object may have the same key twice.

    Raises:
        ValueError: it is not JSON, has an integer of more than `MAX_DIGITS` digits or an unpaired surrogate.
        RecursionError: it is nested deeper than Python's stack allows.
    """
    # Editors on Windows add a byte-order mark, which `json` refuses.
    text = data.decode("utf-8-sig")
    value = json.loads(text, parse_int=_integer, object_pairs_hook=unique_keys if unique else None)
    if "\\u" in text:  # an escaped unpaired surrogate can be read, but neither written nor printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs.

    Raises:
        ValueError: a key occurs twice; names it.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has {', '.join(repr(key) for key in found if keys.count(key) > 1)} twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits; the limit is {MAX_DIGITS}")
    return int(digits)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: it is missing, not JSON, or larger than `MAX_JSON`.
    """
    with wrap_read_errors(path):
        return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        StorageError: as in `read_json`, or it contains another type.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise StorageError(f"cannot read {path}: expected a JSON object, not {type(content).__name__}")
    return content


def is_inside(name: object) -> bool:
    """Check whether a name stays below its folder; links are not considered."""
    if not isinstance(name, str) or not name or _LEADS_OUT.search(name):
        return False
    place = PurePosixPath(name)
    return ".." not in place.parts and not place.is_absolute()


def resolve_inside(folder: Path, name: object) -> Path:
    """Return the path of a file named in a directory; the file must be inside it.

    Symbolic links may lead elsewhere in the directory and, if it is a snapshot in Hugging Face's cache, to
    the `blobs` of that cache.

    Raises:
        StorageError: the name leads out of the directory, or not to a regular file.
    """
    if not isinstance(name, str) or not is_inside(name):
        raise StorageError(f"{folder} is unsafe: it names the file {name!r}, which would be outside of it")
    path = folder / name
    root = folder.resolve()
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    if not any(path.resolve().is_relative_to(place) for place in roots):
        raise StorageError(f"{folder} is unsafe: it names the file {name!r}, which is outside of it")
    if not path.is_file():
        raise StorageError(f"{folder} is damaged: {name} is missing; use another, or copy it again")
    return path
