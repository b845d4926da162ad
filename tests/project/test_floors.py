"""docs/design.md shows the floors that the linter checks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)
import tomllib

ROOT = Path(__file__).resolve().parents[2]


def test_the_floors_in_the_design_are_those_that_the_linter_checks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract, *_ = project["tool"]["importlinter"]["contracts"]
    floors = [floor for floor in contract["layers"] if floor != "__main__"]
    block = re.search(
        r"## Layers\n.*?```text\n(.*?)```", (ROOT / "docs/design.md").read_text("utf-8"), re.DOTALL
    )
    assert block is not None
    assert block[1].splitlines() == floors


def test_the_layout_names_every_package() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"## The layout\n.*?```text\n(.*?)```", guide, re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.startswith("palm/")]
    named = {word.strip("/") for line in lines for word in line.removeprefix("palm/").split("  ")[0].split()}
    packages = {file.parent.name for file in (ROOT / "palm").glob("*/__init__.py")}
    assert named == packages
