"""Differences between nested mappings, such as the settings of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Absent:
    """The value of a key that one of two mappings lacks."""

    def __repr__(self) -> str:
        return "not set"


ABSENT = Absent()


class Change(NamedTuple):
    """A value that differs: the keys that lead to it, and its value in each mapping."""

    path: tuple[Any, ...]
    old: Any
    new: Any


def changes(old: Mapping[Any, Any], new: Mapping[Any, Any], depth: int | None = None) -> Iterator[Change]:
    """Yield every value in which two nested mappings differ, in order; tuples and lists compare as equal.

    Args:
        old: one mapping.
        new: the other.
        depth: levels to descend; deeper mappings are compared as a whole. None for all levels.
    """
    for key in {**old, **new}:
        before = old.get(key, ABSENT)
        now = new.get(key, ABSENT)
        if isinstance(before, Mapping) and isinstance(now, Mapping) and depth != 1:
            below = changes(before, now, None if depth is None else depth - 1)
            yield from (Change((key, *change.path), change.old, change.new) for change in below)
        elif _plain(before) != _plain(now):
            yield Change((key,), before, now)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def shortened(lines: Sequence[str], most: int) -> list[str]:
    """Return the first `most` lines, and a line with the number of the others."""
    more = len(lines) - most
    return [*lines[:most], f"and {more} more"] if more > 0 else list(lines)


def setting_name(path: Sequence[str]) -> str:
    """Return a setting's name on the command line: `task.name` for a task's, without the component's name."""
    names = list(path[1:] if path[0] == "tasks" else path)
    if "settings" in names:
        wrapper = names.index("settings")
        del names[wrapper - 1 : wrapper + 1]
    elif names[-1] == "name":
        names.pop()
    return ".".join(names)
