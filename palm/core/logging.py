"""Where palm reports what it does: one logger, and a console that shows it as PALM printed it."""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("palm")


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stdout` is at that moment, so that notebooks and captures see it."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


def show_on_console() -> None:
    """Print palm's messages, unless the program has configured the logger `palm` or the root logger.

    Of several processes that train together, all but the first print only warnings.
    """
    if logger.handlers or logging.getLogger().handlers:
        return
    logger.addHandler(_Console())
    logger.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)
    logger.propagate = False
