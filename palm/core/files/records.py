"""Strict reading of the JSON that palm wrote itself: every value has the type that its class declares."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from palm.core.errors import StorageError
from palm.core.files.door import is_plain
from palm.core.files.fs import has_changed
from palm.core.files.untrusted import read_json, wrap_read_errors

T = TypeVar("T")

REMEDY = "restore it, or remove it so that palm writes it again"


def read_record(path: Path, kind: type[T]) -> T:
    """Read a JSON file that palm wrote.

    Args:
        path: the file.
        kind: a dataclass or a typed dictionary; the latter keeps undeclared keys.

    Raises:
        StorageError: it is missing, a link, changed since palm wrote it, or of another kind.
    """
    check_unchanged(path)
    content = read_json(path)
    with wrap_read_errors(path):
        try:
            return build(kind, content)
        except (TypeError, ValueError) as error:
            reason = error or f"it is not a {kind.__name__}"
            raise StorageError(f"{path} is damaged: {reason}; {REMEDY}") from error


def check_unchanged(path: Path, remedy: str = REMEDY) -> None:
    """Check that a file has the checksum that the record of its folder has for it, if any.

    Args:
        path: the file.
        remedy: for the message.

    Raises:
        StorageError: it has another checksum, or is not a regular file.
    """
    check_plain(path)
    with wrap_read_errors(path):
        if path.exists() and has_changed(path):
            raise StorageError(f"{path} is damaged, or has been changed since palm wrote it; {remedy}")


def check_plain(path: Path) -> None:
    """Check that a file of a run's folder is a regular file; a link could lead to any file of the user.

    Raises:
        StorageError: it is a link or a special file.
    """
    if os.path.lexists(path) and not is_plain(path):
        raise StorageError(f"{path} is not a regular file; {REMEDY}")


def build(kind: type[T], values: Any) -> T:
    """Build a dataclass or typed dictionary from its JSON; a dataclass drops undeclared keys.

    Raises:
        TypeError: the JSON is not an object.
        ValueError: a field is missing or has another type; names it.
    """
    if not isinstance(values, Mapping):
        raise TypeError
    needed, hints = _fields_of(kind)  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"it lacks {' and '.join(missing)}")
    found = dict(values) if is_typeddict(kind) else {}
    for name, hint in hints.items():
        if name in values:
            try:
                found[name] = _value(hint, values[name])
            except TypeError:
                raise ValueError(f"its {name} is {values[name]!r:.200}") from None
    return kind(**found)


@cache
def _fields_of(kind: type[Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the required fields, and the type of each field."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return sorted(kind.__required_keys__), hints
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
    return needed, {each.name: hints[each.name] for each in fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    """Build a field's value from its JSON.

    Raises:
        TypeError: it has another type.
    """
    origin, parts = _parts_of(hint)
    if origin is UnionType:
        return None if value is None else _value(parts[0], value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _value(parts[1], item) for name, item in value.items()}
    if origin is Sequence and isinstance(value, list):
        return [_value(parts[0], item) for item in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(map(_value, parts, value))
    if origin is build:
        return build(hint, value)
    return _plain(hint, value)


@cache
def _parts_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of a type hint; cached, because histories are long."""
    is_record = isinstance(hint, type) and (is_dataclass(hint) or is_typeddict(hint))
    return build if is_record else get_origin(hint), get_args(hint)


def _plain(hint: Any, value: Any) -> Any:
    if hint is Any:
        return value
    if hint is Path:
        return Path(value)
    if hint is float:
        hint = (int, float)
        # JSON has no NaN, so palm writes null for it.
        value = math.nan if value is None else value
    if not isinstance(hint, type | tuple) or not isinstance(value, hint):
        raise TypeError
    if isinstance(value, bool) and hint is not bool:
        raise TypeError
    return value
