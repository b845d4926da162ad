"""Rows of a data file that cannot be used, which are reported together, left out or repaired."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palm.core.errors import DataError
from palm.core.logging import logger
from palm.reader.tables.files import shown_path

OnBadRow = Literal["error", "skip", "repair"]

LISTED_PROBLEMS = 10
"""The most problems listed in an error message; the others are only counted."""

RECORDED_PROBLEMS = 1000
"""The most problems of a file recorded, to bound memory; the others are only counted."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of a file to predict that cannot be predicted; its record has the reason as `error`.

    Args:
        problem: the reason, which begins with `file:line`.
        id: the id of a question.
    """

    problem: str
    id: str = ""


class RepairableError(DataError):
    """A problem with a row that has one obvious fix.

    Args:
        message: the problem, which begins with the place.
        repaired: the example with the fix.
        done: a description of the fix.
    """

    def __init__(self, message: str, repaired: Any, done: str) -> None:
        super().__init__(message)
        self.repaired = repaired
        self.done = done


class BadRows:
    """The problems with rows of one file.

    Args:
        path: the file.
        mode: the setting `on_bad_row`, or 'predict' to make a `BadRow` of each.

    Attributes:
        count: the number of rows that cannot be used as they are.
        repaired: the number of these that were repaired.
        records: the first of them for `bad_rows.jsonl`, with file, line (if it has one), problem and done.
    """

    def __init__(self, path: Path, mode: str = "error") -> None:
        self.path = shown_path(Path(path))
        self.mode = mode
        self.count = 0
        self.repaired = 0
        self.records: list[dict[str, Any]] = []
        self._listed: list[str] = []

    @property
    def is_refused(self) -> bool:
        """True if the file cannot be used at all."""
        return self.mode == "error" and self.count > 0

    def add(self, error: DataError, name: object = "") -> Any:
        """Record the problem with a row; return its example, or None if the row is left out.

        Args:
            error: the problem.
            name: the id of the row.
        """
        if self.mode == "repair" and isinstance(error, RepairableError):
            self.repaired += 1
            self._record(error, error.done)
            return error.repaired
        self._record(error, "left out")
        return BadRow(str(error), str(name)) if self.mode == "predict" else None

    def _record(self, error: DataError, done: str) -> None:
        self.count += 1
        if len(self._listed) < LISTED_PROBLEMS:
            self._listed.append(str(error))
        if len(self.records) < RECORDED_PROBLEMS:
            place = re.match(r"(.+?):(\d+): ", str(error))  # may be one of several files
            start = place[0] if place else f"{self.path}:"
            self.records.append(
                {
                    "file": place[1] if place else self.path,
                    "line": int(place[2]) if place else None,
                    "problem": str(error).removeprefix(start).lstrip(),
                    "done": done,
                }
            )

    def finish(self, warn: Callable[[str], None] = logger.warning) -> None:
        """Refuse the file after the last row, or warn about the rows that were left out and repaired.

        Args:
            warn: called with the warning.

        Raises:
            DataError: rows cannot be used and `mode` is 'error'; reports all of them.
        """
        if not self.count:
            return
        if self.mode == "predict":
            warn(
                f"{self.path}: {self.count} rows cannot be predicted and have an error instead; "
                f"the first: {self._listed[0]}"
            )
            return
        if not self.is_refused:
            warn(
                f"{self.path}: {self.count} rows cannot be used as they are; on_bad_row: {self.mode} "
                f"left out {self.count - self.repaired} and repaired {self.repaired}; "
                f"the first: {self._listed[0]}"
            )
            return
        lines = list(self._listed)
        if self.count > len(lines):
            lines.append(f"and {self.count - len(lines)} more")
        if self.count > 1:
            lines.append(
                f"{self.path}: {self.count} rows cannot be used; correct them or set on_bad_row: skip"
            )
        raise DataError("\n".join(lines))
