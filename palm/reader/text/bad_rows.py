"""Rows of a data file that cannot be used: told together, left out or repaired, and never silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from palm.core.errors import DataError
from palm.core.logging import logger

OnBadRow = Literal["error", "skip", "repair"]

SHOWN = 10
"""How many problems an error message shows; the others are counted."""

KEPT = 1000
"""How many problems of a file are remembered, so that a million do no harm; the others are counted."""

Item = TypeVar("Item")
Example = TypeVar("Example")


class MendableError(DataError):
    """A row with one obvious mend.

    Args:
        message: what is wrong; begins with the place.
        mended: the example as it should be.
        done: what was done to it, in words.
    """

    def __init__(self, message: str, mended: Any, done: str) -> None:
        super().__init__(message)
        self.mended, self.done = mended, done


class BadRows:
    """What was wrong with the rows of one file.

    Args:
        path: the file.
        mode: the setting `on_bad_row`.
        joint: whoever encodes the file has problems to add too, and calls `finish`; otherwise the reader
            does, and gives no more rows once one was refused.

    Attributes:
        count: rows that could not be used as they are.
        repaired: of these, those that could with a mend.
        records: the first of them as `bad_rows.jsonl` has them: file, line (where it has one), problem, done.
    """

    def __init__(self, path: Path, mode: str = "error", *, joint: bool = False) -> None:
        self.path, self.mode, self.joint = path, mode, joint
        self.count = self.repaired = 0
        self.records: list[dict[str, Any]] = []
        self._shown: list[str] = []

    def add(self, error: DataError) -> Any:
        """Take in what is wrong with a row; returns the example that stands for it, if it could be mended."""
        is_mended = self.mode == "repair" and isinstance(error, MendableError)
        self._keep(error, error.done if is_mended else "left out")  # type: ignore[attr-defined]
        self.repaired += is_mended
        return error.mended if is_mended else None  # type: ignore[attr-defined]

    def _keep(self, error: DataError, done: str) -> None:
        self.count += 1
        if len(self._shown) < SHOWN:
            self._shown.append(str(error))
        if len(self.records) < KEPT:
            said = str(error).removeprefix(f"{self.path}:").lstrip()
            line = re.match(r"(\d+): ", said)
            self.records.append(
                {
                    "file": str(self.path),
                    "line": int(line.group(1)) if line else None,
                    "problem": said[line.end() :] if line else said,
                    "done": done,
                }
            )

    @property
    def is_refused(self) -> bool:
        """Whether the file cannot be used at all."""
        return self.mode == "error" and self.count > 0

    def finish(self, tell: Callable[[str], None] = logger.warning) -> None:
        """After the last row: refuse the file, or tell what was done.

        Args:
            tell: takes a message.

        Raises:
            DataError: rows cannot be used, and `mode` is 'error'; with all of them.
        """
        if self.count and self.mode == "error":
            more = [f"and {self.count - len(self._shown)} more"] if self.count > len(self._shown) else []
            remedy = f"{self.path}: {self.count} rows cannot be used; correct them, or set on_bad_row: skip"
            raise DataError("\n".join([*self._shown, *more, *([remedy] if self.count > 1 else [])]))
        if self.count:
            left_out = self.count - self.repaired
            tell(
                f"{self.path}: rows that cannot be used as they are: {self.count}; on_bad_row: {self.mode} "
                f"has left out {left_out} and repaired {self.repaired}; the first: {self._shown[0]}"
            )


def usable(items: Iterable[Item], example_of: Callable[[Item], Example], bad: BadRows) -> Iterator[Example]:
    """The examples of a file; those that cannot be made of their items go to `bad`.

    Raises:
        DataError: rows cannot be used, and `bad` refuses them.
    """
    for item in items:
        try:
            example: Example | None = example_of(item)
        except DataError as error:
            example = bad.add(error)
        if example is not None and (bad.joint or not bad.is_refused):
            yield example
