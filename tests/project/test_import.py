"""Importing palm is cheap and quiet."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import palm
print(sorted(sys.modules.keys() & {"pandas", "scipy", "sentence_transformers", "sklearn", "transformers"}))
"""


def test_importing_palm_loads_nothing_that_only_tests_need_and_says_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")
