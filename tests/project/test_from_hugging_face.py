"""docs/from_hugging_face.md names settings that palm has, and its example is a configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from palm.config.run import listed
from palm.controller.resolve import HELP, NO_SETTINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from_hugging_face.md"
TEXT = PAGE.read_text(encoding="utf-8")
SETTINGS = {name for group in HELP.values() for each in listed(group, NO_SETTINGS) for name in [each.name]}
ROWS = [line.strip("|").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
NAMED = sorted({name for row in ROWS for name in re.findall(r"`(\w+)(?:: \w+)?`", row[1])})


@pytest.mark.parametrize("name", NAMED)
def test_a_setting_that_the_page_names_exists(name: str) -> None:
    assert name in SETTINGS


def test_every_row_has_a_setting_or_says_that_there_is_none() -> None:
    assert len(NAMED) > 50
    assert [
        row for row in ROWS if len(row) != 3 or not (row[1] == "–" or "`" in row[1] or row[1] == "palm")
    ] == []


def test_the_settings_of_the_example_exist() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    assert {name for block in blocks for name in block} - SETTINGS == set()
