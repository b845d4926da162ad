"""The table of settings in the documentation is the one that the components have."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "settings_table.py"


def test_the_table_of_settings_is_up_to_date() -> None:
    module = runpy.run_path(str(SCRIPT))
    assert module["PAGE"].read_text(encoding="utf-8") == module["page"](), "run scripts/settings_table.py"
