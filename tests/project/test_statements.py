"""docs/statements.md: every row says where a statement holds or why not, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.shared import SHARED, needs_shared

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "statements.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| where ")
]
NAMED = sorted({tuple(name.split("::")) for name in re.findall(r"`(\S+?\.py::test_\w+)`", PAGE)})


@pytest.mark.parametrize(("path", "test"), NAMED, ids=lambda value: value)
def test_a_test_that_the_page_names_exists(path: str, test: str) -> None:
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE)


def test_every_statement_holds_or_differs_and_all_are_counted() -> None:
    assert {len(row) for row in ROWS} == {4}
    assert [row for row in ROWS if row[2] == row[3] == "–"] == []
    differ = sum(row[3] != "–" for row in ROWS)
    counted = re.search(r"^(\d+) statements: (\d+) hold as they stand, (\d+) differ", PAGE, re.MULTILINE)
    assert counted is not None
    assert [int(number) for number in counted.groups()] == [len(ROWS), len(ROWS) - differ, differ]


@needs_shared
def test_every_document_has_its_part_of_the_page() -> None:
    assert [path.name for path in (SHARED / "spec").iterdir() if f"`{path.name}`" not in PAGE] == []
