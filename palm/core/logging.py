"""The logger `palm`, and a console for programs that have set up no logging.

Answers of commands go to stdout, messages go through here to stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal

logger = logging.getLogger("palm")

Progress = Literal["auto", "bar", "lines", "none"]
"""Display of a run's progress; auto: a bar on a terminal and in a notebook, lines elsewhere."""


class _Cell:
    """The lines below a cell of a notebook, in one output; bars that move begin a new one otherwise."""

    most_lines = 200
    number: int | None = None

    def show(self, line: str, notebook: Any) -> None:
        """Add a line below the cell that runs."""
        number = notebook.get_ipython().execution_count
        if number != self.number or len(self.lines) == self.most_lines:
            self.number = number
            self.lines: list[str] = []
            self.output = notebook.display.display({"text/plain": ""}, raw=True, display_id=True)
        self.lines.append(line)
        self.output.update({"text/plain": "\n".join(self.lines)}, raw=True)


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at that moment, until the program sets up logging of its own."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._cell = _Cell()

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:  # it propagates there
            return
        self.stream = sys.stderr
        if (notebook := sys.modules.get("IPython")) is not None and notebook.get_ipython() is not None:
            self._cell.show(self.format(record), notebook)
        elif (tqdm := sys.modules.get("tqdm")) is not None:
            # As `tqdm.contrib.logging` does; a line under a bar would leave half of the bar behind.
            tqdm.tqdm.write(self.format(record), file=self.stream)
        else:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        is_plain = record.levelno < logging.WARNING or not shows_colour(self.stream)
        return text if is_plain else f"\033[33m{text}\033[0m"


def show_on_console() -> None:
    """Show palm's messages, unless the program has configured the logger `palm` or the root logger.

    Of several processes that train together, all but the first show only warnings. A program that
    configures logging later gets the records from then on; they always propagate.
    """
    if logger.handlers or logging.getLogger().handlers:
        return
    logger.addHandler(_Console())
    logger.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """Show warnings only (quiet), or with every message when and where it was written (verbose)."""
    if quiet or verbose:
        logger.setLevel(logging.WARNING if quiet else logging.DEBUG)
    if verbose:
        for handler in logger.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(module)s:%(lineno)d: %(message)s"))


def shows_colour(stream: IO[str]) -> bool:
    """Tell whether a stream is a terminal whose user has not refused colours (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Add palm's warnings to a list, as they come, and log them as usual."""
    messages: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(record.getMessage())
        return True

    # A filter, since with a handler here Python itself would show nothing to a program without logging.
    logger.addFilter(keep)
    try:
        yield messages
    finally:
        logger.removeFilter(keep)


@contextmanager
def only_collected() -> Iterator[list[str]]:
    """Add palm's warnings to a list, as they come, and show nothing."""
    handlers = logger.handlers
    propagates = logger.propagate
    level = logger.level
    # With a handler in place, nobody adds a console.
    logger.handlers = [logging.NullHandler()]
    logger.propagate = False
    try:
        with collected_warnings() as messages:
            yield messages
    finally:
        logger.handlers = handlers
        logger.propagate = propagates
        logger.setLevel(level)
