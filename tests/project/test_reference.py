"""The reference pages are those that the code has."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_reference.py"


def test_the_reference_pages_are_current() -> None:
    for path, page in runpy.run_path(str(SCRIPT))["PAGES"].items():
        assert path.read_text(encoding="utf-8") == page(), "run python scripts/make_reference.py"
