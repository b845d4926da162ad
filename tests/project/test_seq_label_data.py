"""The tagging demo's data: written by a script, rightly labelled, and dev asks about names never seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"


def test_the_script_writes_the_committed_files_to_the_byte(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_tagging_data.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, capture_output=True)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len(written) == 8
    assert sum(map(len, written.values())) < 400_000
    for name, content in written.items():
        assert (DATA / name).read_bytes() == content, f"{name} differs"
