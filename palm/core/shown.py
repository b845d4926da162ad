"""Scores, settings, tables and untrusted text as people read them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any


def printable(text: str) -> str:
    """Escape everything unprintable in untrusted text, except spaces, line ends and tabs, for a terminal."""
    return "".join(
        # Python counts all spaces but one as unprintable, also the full-width one of Chinese texts.
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else ascii(c)[1:-1]
        for c in text
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the rows of a table as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


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
