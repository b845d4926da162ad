"""The errors that a user can act on; every message says where, what came, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of every command; a signal ends one with 128 and its number, as a shell counts."""

    DONE = 0
    FOUND = 1
    REFUSED = 2


EXIT_CODES = {
    ExitCode.DONE: "done, and nothing was found",
    ExitCode.FOUND: "done, and something was found: errors of a check, differences of two runs",
    ExitCode.REFUSED: "not done, for the reason in the message",
}
"""What the codes mean."""


class PalmError(Exception):
    """Base of everything palm raises on purpose. The command line prints it without a traceback."""


class ConfigError(PalmError):
    """A wrong configuration, with all of its problems in one report.

    Args:
        problems: one, or several, every one beginning with its place (`config.yaml:7: …`).
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataError(PalmError):
    """A data file that cannot be read as declared; the message begins with `file:line`."""


class WiringError(PalmError):
    """Components of one task that do not fit together."""


class StorageError(PalmError):
    """A model, checkpoint or weights directory that is missing, damaged or of another configuration."""


class TrainingError(PalmError):
    """Training that cannot go on: a loss that is not a number, a task that can never finish."""


class ResourceError(PalmError):
    """Memory or open files that the system does not give."""
