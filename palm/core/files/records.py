"""Strict reading of the JSON that palm wrote itself: every value has the type that its class declares."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from palm.core.errors import StorageError
from palm.core.files.door import is_plain
from palm.core.files.fs import has_changed
from palm.core.files.untrusted import read_json, wrap_read_errors

T = TypeVar("T")

REMEDY = "restore it, or remove it to have it made anew"


def read_record(path: Path, kind: type[T]) -> T:
    """Read a JSON file that palm wrote.

    Args:
        path: the file.
        kind: a dataclass or a typed dictionary; the latter keeps keys that it does not declare.

    Raises:
        StorageError: it is missing, a link, not as palm wrote it, or something else.
    """
    check_unchanged(path)
    content = read_json(path)
    with wrap_read_errors(path):
        try:
            return build(kind, content)
        except (TypeError, ValueError) as error:
            reason = error or f"it holds no {kind.__name__}"
            raise StorageError(f"{path} is damaged: {reason}; {REMEDY}") from error


def check_unchanged(path: Path) -> None:
    """Check that a file is as palm wrote it, as far as the record of its folder tells.

    Raises:
        StorageError: it has another checksum, or is no plain file.
    """
    check_plain(path)
    with wrap_read_errors(path):
        if path.exists() and has_changed(path):
            raise StorageError(f"{path} is damaged, or has been changed since palm wrote it; {REMEDY}")


def check_plain(path: Path) -> None:
    """Check that a file of a run's folder is no link, which may lead to files of the reader's.

    Raises:
        StorageError: it is a link or a special file.
    """
    if os.path.lexists(path) and not is_plain(path):
        raise StorageError(f"{path} is no plain file, as palm would write it; {REMEDY}")


def build(kind: type[T], values: Any) -> T:
    """Make a dataclass or typed dictionary of its JSON; a dataclass leaves out what it does not declare.

    Raises:
        TypeError: the JSON is no object.
        ValueError: a field is missing or has another type, and which.
    """
    if not isinstance(values, Mapping):
        raise TypeError
    needed, readers = _fields_of(kind)  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"it has no {' and no '.join(missing)}")
    found = dict(values) if is_typeddict(kind) else {}
    for name, read in readers.items():
        if name in values:
            try:
                found[name] = read(values[name])
            except TypeError:
                raise ValueError(f"its {name} is {values[name]!r:.200}") from None
    return kind(**found)


@cache
def _fields_of(kind: type[Any]) -> tuple[list[str], dict[str, Callable[[Any], Any]]]:
    """Return the fields that must be there, and the reader of each; histories are long."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return sorted(kind.__required_keys__), {name: _reader_of(hint) for name, hint in hints.items()}
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
    return needed, {each.name: _reader_of(hints[each.name]) for each in fields(kind)}


def _reader_of(hint: Any) -> Callable[[Any], Any]:
    """Return a function that makes a field's value of its JSON, and raises TypeError for another type."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if hint is Any:
        return _read_any
    if origin is UnionType:
        return partial(_read_optional, _reader_of(parts[0]))
    if hint is Path:
        return Path
    if isinstance(hint, type) and (is_dataclass(hint) or is_typeddict(hint)):
        return partial(build, hint)
    if origin is Mapping:
        return partial(_read_mapping, _reader_of(parts[1]))
    if origin is Sequence:
        return partial(_read_list, _reader_of(parts[0]))
    if origin is tuple:
        return partial(_read_tuple, [_reader_of(part) for part in parts])
    return _read_number if hint is float else partial(_read_plain, hint)


def _read_any(value: Any) -> Any:
    return value


def _read_optional(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _read_number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _read_plain(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError
    return value


def _read_mapping(read: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return {name: read(item) for name, item in value.items()}


def _read_list(read: Callable[[Any], Any], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return [read(item) for item in value]


def _read_tuple(readers: Sequence[Callable[[Any], Any]], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) != len(readers):
        raise TypeError
    return tuple(read(item) for read, item in zip(readers, value, strict=True))
