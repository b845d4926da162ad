"""Running a demo as a user does: as a program of its own, from another working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(demo: str, cwd: Path, *arguments: str) -> str:
    """What a demo prints and logs when it is started in `cwd`; it must end well."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "demos" / demo / "demo.py"), "--save_path", str(cwd / "out"), *arguments],
        cwd=cwd,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
