"""Durations in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Format seconds for people: `40 ms`, `2.5 s`, `40 s`, `3 min`, `2 h 5 min`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
