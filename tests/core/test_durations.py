"""Durations in words."""

from __future__ import annotations

from palm.core.process import duration


def test_says_durations_as_people_do() -> None:
    said = [duration(seconds) for seconds in (0.04, 2.54, 12.5, 89, 101, 3570, 5400, 7260)]
    assert said == ["40 ms", "2.5 s", "12 s", "89 s", "2 min", "1 h 0 min", "1 h 30 min", "2 h 1 min"]
