"""Errors that a user can act on; messages give the place, the value, what was expected and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


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
        self = super().__new__(cls, text)
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
        self.problems = [problems] if isinstance(problems, str) else list(problems)
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
