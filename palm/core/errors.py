"""Errors that a user can act on; messages give the place, the value, what was expected and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from palm.core.logging import shown_url


class ExitCode(IntEnum):
    """Exit codes of all commands; a command ended by a signal exits with 128 + its number, as in a shell."""

    DONE = 0
    FOUND = 1
    REFUSED = 2


EXIT_CODES = {
    ExitCode.DONE: "done, and nothing was found",
    ExitCode.FOUND: "done, and something was found: errors of a check, differences of two runs",
    ExitCode.REFUSED: "not done, for the reason in the message",
}
"""Meanings of the exit codes."""


class PalmError(Exception):
    """Base of all errors that palm raises on purpose; the command line prints them without a traceback."""

    def __str__(self) -> str:
        return shown_url(super().__str__())


class Problem(str):
    """A sentence about a setting, which a configuration prefixes with the place of the setting.

    Args:
        text: the sentence.
        setting: the name of the setting; empty for a problem of something else.
        task: the task whose setting it is; None for one of the component that is being built.
    """

    setting: str
    task: str | None

    def __new__(cls, text: str, setting: str = "", task: str | None = None) -> Problem:
        self = super().__new__(cls, shown_url(text))
        self.setting = setting
        self.task = task
        return self


def about(setting: str, text: str) -> Problem:
    """Return the problem whose sentence is the name of the setting and `text`."""
    return Problem(f"{setting}{text}", setting)


class ConfigError(PalmError):
    """A wrong configuration, with all of its problems in one report.

    Args:
        problems: one or several, each beginning with its place (`config.yaml:7: …`).
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        lines = [problems] if isinstance(problems, str) else problems
        self.problems = [each if isinstance(each, Problem) else shown_url(each) for each in lines]
        super().__init__("\n".join(self.problems))


class DataError(PalmError):
    """A data file that cannot be read as declared; the message begins with `file:line`."""


class WiringError(PalmError):
    """Components of one task that do not fit together."""


class StorageError(PalmError):
    """A directory of a model, checkpoint or weights that is missing, damaged or does not fit."""


class TrainingError(PalmError):
    """Training that cannot continue: a loss that is NaN, a task that can never finish."""


class ResourceError(PalmError):
    """Memory, open files or another resource that the system does not provide."""


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
