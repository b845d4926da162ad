"""When a version is fit for release: what `scripts/release_check.py` compares."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import palm

ROOT = Path(__file__).resolve().parents[2]
DATED = "# Changelog\n\nAbout it.\n\n## 1.2.0 (2026-12-01)\n\n## 1.1.0 (2026-11-01)\n"
OPEN = DATED.replace("2026-12-01", "unreleased")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "release_check.py"))


@pytest.mark.parametrize(
    ("version", "changelog", "tag", "problems"),
    [
        ("1.2.0", OPEN, None, []),
        ("1.2.0", DATED, None, []),
        ("1.2.0", DATED, "v1.2.0", []),
        ("1.2.0", OPEN, "v1.2.0", [("CHANGELOG.md", "1.2.0", "a date", "'unreleased'")]),
        ("1.2.0", DATED, "1.2.0", [("tag", "'v1.2.0'", "'1.2.0'")]),
        ("1.1.0", OPEN, None, [("CHANGELOG.md", "1.2.0", "1.1.0")]),
        (
            "1.2.0",
            "## Unreleased\n",
            None,
            [("CHANGELOG.md", "'## <version> (unreleased)'", "'## Unreleased'")],
        ),
    ],
)
def test_version_changelog_and_tag_agree(
    script: dict[str, Any], version: str, changelog: str, tag: str | None, problems: list[tuple[str, ...]]
) -> None:
    found = script["version_problems"](version, changelog, tag)
    for line, values in zip(found, problems, strict=True):
        assert all(value in line for value in values)


def test_the_changelog_is_of_this_version(script: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert script["version_problems"](palm.__version__, changelog, None) == []
