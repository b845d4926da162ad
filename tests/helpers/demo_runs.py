"""Running a demo as a user does: as a program of its own, from another working directory."""

from __future__ import annotations

from pathlib import Path

from helpers.loaded import run_script

ROOT = Path(__file__).resolve().parents[2]


def run(demo: str, cwd: Path, *arguments: str) -> str:
    """What a demo prints and logs when it is started in `cwd`; it must end well."""
    script = ROOT / "demos" / demo / "demo.py"
    status, output = run_script(script, cwd, "--save_path", str(cwd / "out"), *arguments)
    assert status == 0, output
    return output
