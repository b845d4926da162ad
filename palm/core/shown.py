"""Scores, settings and tables as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines of text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def shown_score(value: float | None) -> str:
    """A score as people read it; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def shown_value(value: Any) -> str:
    """A setting as its file would have it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
