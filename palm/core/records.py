"""JSON that palm wrote itself: every value has the type that its class declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from palm.core.io import check_plain, read_json, wrap_read_errors

T = TypeVar("T")


def read_record(path: Path, kind: type[T]) -> T:
    """Read a JSON file that palm wrote; see `record_of`.

    Raises:
        StorageError: it is missing, a link, or of another kind.
    """
    check_plain(path)
    content = read_json(path)
    with wrap_read_errors(path):
        return record_of(kind, content)


def record_of(kind: type[T], values: Any) -> T:
    """Build a dataclass or typed dictionary from its JSON; a dataclass drops undeclared keys.

    Raises:
        ValueError: the JSON is not an object, or a field is missing or has another type; names it.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"it is not a {kind.__name__}")
    needed, hints = _fields_of(kind)  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"it lacks {' and '.join(missing)}")
    found = dict(values) if is_typeddict(kind) else {}
    for name in hints.keys() & values.keys():
        try:
            found[name] = _typed(hints[name], values[name])
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


@cache
def _parts_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of a type hint; cached, because histories are long."""
    return get_origin(hint), get_args(hint)


def _typed(hint: Any, value: Any) -> Any:
    """Build a value from its JSON; JSON has no NaN, so palm writes null for it.

    Raises:
        TypeError: it has another type.
    """
    origin, parts = _parts_of(hint)
    if origin is UnionType:
        return None if value is None else _typed(parts[0], value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _typed(parts[1], item) for name, item in value.items()}
    if origin is Sequence and isinstance(value, list):
        return [_typed(parts[0], item) for item in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(map(_typed, parts, value))
    if is_dataclass(hint) or is_typeddict(hint):
        return record_of(hint, value)
    if hint is float and value is None:
        return math.nan
    return _plain(hint, value)


def _plain(hint: Any, value: Any) -> Any:
    if hint is Any:
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    types = (int, float) if hint is float else hint
    if not isinstance(types, type | tuple) or not isinstance(value, types):
        raise TypeError
    if isinstance(value, bool) and hint is not bool:
        raise TypeError
    return value
