"""Checks of constructors' arguments: every one names its setting, and all are in one report."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from os import PathLike

from palm.core.errors import ConfigError

FILE_NAMES = ("_path", "_file")
"""Ends of names of settings: a text with such a name is a file, if there is one."""

MAX_COUNT = 2**31 - 1
"""Of whatever is counted: an int32, as labels and ids are."""


def count_problems(least: int = 1, **settings: object) -> list[str]:
    """Return a line for every setting that is not a whole number from `least` to what an int32 holds."""
    return [
        f"{name}: {value!r} should be a whole number, {least} or more"
        + (f", at most {MAX_COUNT}" if isinstance(value, int) and value > MAX_COUNT else "")
        for name, value in settings.items()
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT
    ]


def number_problems(expected: str, fits: Callable[[float], bool], /, **settings: object) -> list[str]:
    """Return a line for every setting that is not a number that fits."""
    return [
        f"{name}: {value!r} should be {expected}"
        for name, value in settings.items()
        if not isinstance(value, int | float) or isinstance(value, bool) or not fits(value)
    ]


def dropout_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not a probability below 1."""
    return number_problems("a probability, from 0 to below 1", lambda value: 0 <= value < 1, **settings)


def positive_problems(expected: str = "a number above 0", /, **settings: object) -> list[str]:
    """Return a line for every setting that is not a finite number above 0."""
    return number_problems(expected, lambda value: 0 < value < math.inf, **settings)


def type_problems(kind: type | tuple[type, ...], wanted: str, **settings: object) -> list[str]:
    """Return a line for every setting that is no `kind`, which `wanted` words."""
    return [
        f"{name} should be {wanted}, not {value!r}"
        for name, value in settings.items()
        if not isinstance(value, kind) or isinstance(value, bool)
    ]


def path_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is no path."""
    return type_problems((str, PathLike), "a path", **settings)


def choice_problems(choices: Collection[str], **settings: object) -> list[str]:
    """Return a line for every setting that is none of `choices`."""
    return [
        f"{name}: {value!r} should be one of {', '.join(choices)}"
        for name, value in settings.items()
        if value not in choices
    ]


def raise_any(problems: Iterable[str]) -> None:
    """Check that there are no problems.

    Raises:
        ConfigError: there are; with all of them, each once.
    """
    if found := list(dict.fromkeys(problems)):
        raise ConfigError(found)
