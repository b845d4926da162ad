"""Checks of constructor arguments: every problem names its setting, and all are reported together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from os import PathLike

from palm.core.errors import ConfigError, Problem

FILE_NAMES = ("_path", "_file")
"""Suffixes of names of settings: a string under such a name is a path if that file exists."""

MAX_COUNT = 2**31 - 1
"""Upper limit of counts: the largest int32, the type of labels and ids."""


def count_problems(least: int = 1, **settings: object) -> list[str]:
    """Return a line for every setting that is not an integer from `least` to `MAX_COUNT`."""
    return [
        Problem(
            f"{name}: {value!r} should be a whole number, {least} or more"
            + (f", at most {MAX_COUNT}" if isinstance(value, int) and value > MAX_COUNT else ""),
            name,
        )
        for name, value in settings.items()
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT
    ]


def number_problems(expected: str, fits: Callable[[float], bool], /, **settings: object) -> list[str]:
    """Return a line for every setting that is not a number for which `fits` is true."""
    return [
        Problem(f"{name}: {value!r} should be {expected}", name)
        for name, value in settings.items()
        if not isinstance(value, int | float) or isinstance(value, bool) or not fits(value)
    ]


def dropout_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not a probability below 1."""
    return number_problems("a probability, from 0 to below 1", lambda value: 0 <= value < 1, **settings)


def share_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not above 0 and at most 1."""
    return number_problems("above 0 and at most 1", lambda value: 0 < value <= 1, **settings)


def positive_problems(expected: str = "a number above 0", /, **settings: object) -> list[str]:
    """Return a line for every setting that is not a finite number above 0."""
    return number_problems(expected, lambda value: 0 < value < math.inf, **settings)


def type_problems(kind: type | tuple[type, ...], wanted: str, **settings: object) -> list[str]:
    """Return a line for every setting that is not an instance of `kind`; `wanted` describes it."""
    return [
        Problem(f"{name} should be {wanted}, not {value!r}", name)
        for name, value in settings.items()
        if not isinstance(value, kind) or isinstance(value, bool)
    ]


def path_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not a path."""
    return type_problems((str, PathLike), "a path", **settings)


def choice_problems(choices: Collection[str], **settings: object) -> list[str]:
    """Return a line for every setting that is not one of `choices`."""
    return [
        Problem(f"{name}: {value!r} should be one of {', '.join(choices)}", name)
        for name, value in settings.items()
        if value not in choices
    ]


def raise_any(problems: Iterable[str]) -> None:
    """Raise a ConfigError if there are problems.

    Raises:
        ConfigError: lists every problem once.
    """
    if found := list(dict.fromkeys(problems)):
        raise ConfigError(found)
