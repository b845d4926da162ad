"""Rows of a data file that cannot be used: reported together, left out or repaired, and never silently."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from palm.core.errors import DataError
from palm.core.logging import logger

OnBadRow = Literal["error", "skip", "repair"]

LISTED_PROBLEMS = 10
"""How many problems an error message lists; the others are counted."""

RECORDED_PROBLEMS = 1000
"""How many problems of a file are recorded, so that a million need little memory; the others are counted."""


class MendableError(DataError):
    """A row with one obvious mend.

    Args:
        message: the problem; begins with the place.
        mended: the example as it should be.
        done: the change, in words.
    """

    def __init__(self, message: str, mended: Any, done: str) -> None:
        super().__init__(message)
        self.mended = mended
        self.done = done


class BadRows:
    """The problems with rows of one file.

    Args:
        path: the file.
        mode: the setting `on_bad_row`.

    Attributes:
        count: rows that could not be used as they are.
        repaired: of these, those that could with a mend.
        records: the first of them as `bad_rows.jsonl` has them: file, line (where it has one), problem, done.
    """

    def __init__(self, path: Path, mode: str = "error") -> None:
        self.path = path
        self.mode = mode
        self.count = 0
        self.repaired = 0
        self.records: list[dict[str, Any]] = []
        self._listed: list[str] = []

    @property
    def is_refused(self) -> bool:
        """True if the file cannot be used at all."""
        return self.mode == "error" and self.count > 0

    def add(self, error: DataError) -> Any:
        """Record the problem with a row; returns the mended example, or None where the row is left out."""
        if self.mode == "repair" and isinstance(error, MendableError):
            self.repaired += 1
            self._record(error, error.done)
            return error.mended
        self._record(error, "left out")
        return None

    def _record(self, error: DataError, done: str) -> None:
        self.count += 1
        if len(self._listed) < LISTED_PROBLEMS:
            self._listed.append(str(error))
        if len(self.records) < RECORDED_PROBLEMS:
            place = re.match(r"(.+?):(\d+): ", str(error))  # the file is one of several, perhaps
            start = place[0] if place else f"{self.path}:"
            self.records.append(
                {
                    "file": place[1] if place else str(self.path),
                    "line": int(place[2]) if place else None,
                    "problem": str(error).removeprefix(start).lstrip(),
                    "done": done,
                }
            )

    def finish(self, warn: Callable[[str], None] = logger.warning) -> None:
        """After the last row: refuse the file, or report what was left out and repaired.

        Args:
            warn: takes a message.

        Raises:
            DataError: rows cannot be used, and `mode` is 'error'; with all of them.
        """
        if not self.count:
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
                f"{self.path}: {self.count} rows cannot be used; correct them, or set on_bad_row: skip"
            )
        raise DataError("\n".join(lines))
