"""The logger `palm`, and console output for programs that have not configured logging.

Results of commands go to stdout; messages go through this logger to stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal

from palm.core.shown import printable

logger = logging.getLogger("palm")

Progress = Literal["auto", "bar", "lines", "none"]
"""Display of a run's progress; auto: a bar on a terminal and in a notebook, lines elsewhere."""


class _Cell:
    """All log lines of a notebook cell in one output; progress bars would split them into many."""

    most_lines = 200
    number: int | None = None

    def show(self, line: str, notebook: Any) -> None:
        """Add a line below the running cell."""
        number = notebook.get_ipython().execution_count
        if number != self.number or len(self.lines) == self.most_lines:
            self.number = number
            self.lines: list[str] = []
            self.output = notebook.display.display({"text/plain": ""}, raw=True, display_id=True)
        self.lines.append(line)
        self.output.update({"text/plain": "\n".join(self.lines)}, raw=True)


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to the current `sys.stderr`, until the program configures logging itself."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._cell = _Cell()

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:  # the record propagates to them
            return
        self.stream = sys.stderr
        if (notebook := sys.modules.get("IPython")) is not None and notebook.get_ipython() is not None:
            self._cell.show(self.format(record), notebook)
        elif (tqdm := sys.modules.get("tqdm")) is not None:
            # As in `tqdm.contrib.logging`; otherwise a line would leave half of the bar behind.
            tqdm.tqdm.write(self.format(record), file=self.stream)
        else:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record))
        is_plain = record.levelno < logging.WARNING or not shows_colour(self.stream)
        return text if is_plain else f"\033[33m{text}\033[0m"


def show_on_console() -> None:
    """Show palm's messages, unless the program has configured the logger `palm` or the root logger.

    In distributed training, all processes but the first show only warnings. Records always propagate, so a
    program that configures logging later receives them from then on.
    """
    if logger.handlers or logging.getLogger().handlers:
        return
    logger.addHandler(_Console())
    logger.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """Show only warnings (quiet), or all messages with time and source line (verbose)."""
    if quiet or verbose:
        logger.setLevel(logging.WARNING if quiet else logging.DEBUG)
    if verbose:
        for handler in logger.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(module)s:%(lineno)d: %(message)s"))


def shows_colour(stream: IO[str]) -> bool:
    """Check whether a stream is a terminal with colours that the user has not disabled (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect palm's warnings in a list, and log them as usual."""
    messages: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(record.getMessage())
        return True

    # A filter: with a handler, Python would no longer print warnings in programs without logging.
    logger.addFilter(keep)
    try:
        yield messages
    finally:
        logger.removeFilter(keep)


@contextmanager
def only_collected() -> Iterator[list[str]]:
    """Collect palm's warnings in a list, and show nothing."""
    handlers = logger.handlers
    propagates = logger.propagate
    level = logger.level
    # `show_on_console` does nothing if there is a handler.
    logger.handlers = [logging.NullHandler()]
    logger.propagate = False
    try:
        with collected_warnings() as messages:
            yield messages
    finally:
        logger.handlers = handlers
        logger.propagate = propagates
        logger.setLevel(level)
