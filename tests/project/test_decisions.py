"""Every decision record is in the index, under its own title and date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
HEADINGS = ["## Context", "## Decision", "## Considered", "## Consequences"]


def test_the_index_lists_the_records() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d.*?\.md)\)", index) == [record.name for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_number_its_date_and_its_parts(record: Path) -> None:
    lines = record.read_text(encoding="utf-8").splitlines()
    number = record.name[:4]
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    title = re.fullmatch(rf"# {number}: (.+)", lines[0])
    date = re.match(r"Date: (\d{4}-\d{2}-\d{2})\. Status: (accepted|replaced by \d{4})\.$", lines[2])
    assert title is not None
    assert date is not None
    assert f"({record.name}) | {title[1][0].lower()}{title[1][1:]} | {date[1]} |" in index
    assert [line for line in lines if line.startswith("#")][1:] == HEADINGS
