"""Run all static checks of the project, even if one fails: `python scripts/check.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CHECKS = {
    "format": ["-m", "ruff", "format", "--check", "."],
    "lint": ["-m", "ruff", "check", "."],
    "types": ["-m", "mypy"],
    "imports go down only": [
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ],
}


def main() -> int:
    """Return 0 if all checks pass, 1 otherwise."""
    failed = []
    for name, command in CHECKS.items():
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode:
            failed.append(name)
    print(f"== failed: {', '.join(failed)}" if failed else "== all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
