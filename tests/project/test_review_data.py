"""The tutorial's tables: written by a script, with the two mistakes that the tutorial finds."""

from __future__ import annotations

import csv
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "make_review_data.py"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_script_writes_the_committed_table(script: dict[str, Any], language: str) -> None:
    with (ROOT / "data" / "reviews" / f"reviews.{language}.csv").open(encoding="utf-8", newline="") as file:
        committed = list(csv.DictReader(file))
    assert script["reviews"](language) == committed
    text, topic, stars, _tags = committed[0]
    assert sorted(Counter(row[topic] for row in committed).values())[0] == 1
    assert Counter(Counter(row[text] for row in committed).values()) == {1: 398, 2: 1}
    assert {row[stars] for row in committed} == set("12345")
