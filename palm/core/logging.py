"""Log messages and how values are shown in them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import IO, Any, Literal


def printable(text: str) -> str:
    """Escape everything unprintable in untrusted text, except spaces, line ends and tabs, for a terminal."""
    return "".join(
        # Python counts all spaces but one as unprintable, also the full-width one of Chinese texts.
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else ascii(c)[1:-1]
        for c in text
    )


MOST_COLUMNS = 10_000
"""Width of tables that are not shown on a terminal."""

_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}:/+)[^/\s?#]*@")
_QUERY = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}:/+[^\s?'\"]+\?)[^\s'\"]*[^\s'\":;,.)]")


def shown_url(text: object) -> str:
    """Return a text for people, in which URLs have neither a user, a password nor the values of a query."""
    # A `Path` has one slash of the two.
    return _QUERY.sub(r"\1…", _LOGIN.sub(r"\1", str(text)))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table with a header as lines; on a terminal they fit its width, and long cells are folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stderr.isatty() or sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else MOST_COLUMNS
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    widths = _widths(rows, width)
    for column in widths:
        table.add_column(overflow="fold", width=column)
    for row in rows:
        # rich would not indent the other lines of an indented cell.
        cells = zip(row, widths, strict=True)
        table.add_row(*(Text(_broken(cell, column, 2 * _indent(cell))) for cell, column in cells))
    # In a notebook, rich would show what is captured as well.
    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths of columns that cut no word; if all words have no room, the widest columns cut some."""
    from rich.cells import cell_len

    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    words = [
        max(2 * _indent(cell) + cell_len(word) for cell in column for word in cell.split() or [""])
        for column in columns
    ]
    room = max(room - 2 * len(columns), len(columns))
    least = words if sum(words) <= room else [1] * len(columns)
    while sum(widths) > room:
        widths[max(range(len(widths)), key=lambda k: widths[k] - least[k])] -= 1
    return widths


def fitted(text: str, stream: IO[str]) -> str:
    """Break the lines of a text between words where a stream is a terminal that has no room for them."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(_broken(line, width, _margin(line)) for line in text.split("\n"))


_WORD = re.compile(r"\s*(?:(?<![`\w])palm .*|\S+)")
"""A word; a command stays whole, so that it can be copied."""


def _broken(line: str, width: int, margin: int) -> str:
    """Break a line between words; all lines but the first have a margin."""
    from rich.cells import cell_len

    if cell_len(line) <= width:
        return line
    lines = [""]
    for word in _WORD.findall(line):
        if lines[-1].strip() and cell_len(lines[-1] + word) > width:
            lines.append(" " * margin + word.lstrip())
        else:
            lines[-1] += word
    return "\n".join(lines)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _margin(line: str) -> int:
    """Return where the text of a line begins that has a word in a column before it, as findings have."""
    first = re.match(r" *\w+ {2,}", line)
    return first.end() if first is not None else _indent(line) + 2


class Printed(ABC):
    """Base of results: `print` shows their parts, and a notebook too, the last one first."""

    @abstractmethod
    def parts(self) -> Sequence[str | Sequence[Sequence[str]]]:
        """Return texts, and tables with a header; the last part is what a reader wants first."""

    def __str__(self) -> str:
        lines = ([part] if isinstance(part, str) else aligned(part) for part in self.parts())
        return "\n".join(line for each in lines for line in each)

    def _repr_html_(self) -> str:
        return "".join(map(_html, filter(None, reversed(self.parts()))))


def _html(part: str | Sequence[Sequence[str]]) -> str:
    if isinstance(part, str):
        return f'<p style="white-space: pre-line">{escape(part)}</p>'
    head, *rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in part]
    body = "".join(f"<tr>{row}</tr>" for row in [head.replace("td>", "th>"), *rows])
    return f"<table>{body}</table>"


def shown_score(value: float | None) -> str:
    """Format a score for display; None becomes an empty string."""
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def shown_value(value: Any) -> str:
    """Format the value of a setting as in a configuration file."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


logger = logging.getLogger("palm")


def _clean(record: logging.LogRecord) -> bool:
    """Remove control characters and passwords in URLs from a message, whichever handlers will show it."""
    message = record.getMessage()
    if (shown := printable(shown_url(message))) != message:
        record.msg = shown
        record.args = ()
    return True


logger.addFilter(_clean)

Progress = Literal["auto", "bar", "lines", "none"]
"""Display of a run's progress; auto: a bar on a terminal and in a notebook, lines elsewhere."""


def display_of(progress: Progress) -> Progress:
    """Return the display of this process: bar, lines or none."""
    if progress != "auto":
        return progress
    can_move = sys.stderr.isatty() or "ipykernel" in sys.modules  # a terminal, or a notebook
    return ("bar" if can_move else "lines") if logger.isEnabledFor(logging.INFO) else "none"


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to the current `sys.stderr`, until the program configures logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:  # the record propagates to them
            return
        self.stream = sys.stderr
        if (tqdm := sys.modules.get("tqdm")) is not None:
            # As in `tqdm.contrib.logging`; otherwise a line would leave half of the bar behind.
            tqdm.tqdm.write(self.format(record), file=self.stream)
        else:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        text = fitted(printable(super().format(record)), self.stream)
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
def collected_warnings(shown: bool = True) -> Iterator[list[str]]:
    """Collect palm's warnings in a list, and log all messages as usual, or none of them."""
    messages: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(record.getMessage())
        return shown

    # A filter: with a handler, Python would no longer print warnings in programs without logging. It comes
    # after `_clean`, and before those of the blocks around, which may stop the record.
    logger.filters.insert(1, keep)
    try:
        yield messages
    finally:
        logger.removeFilter(keep)
