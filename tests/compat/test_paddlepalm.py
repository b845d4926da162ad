"""Programs that import PaddlePALM by its own name."""

from __future__ import annotations

import subprocess
import sys


def test_programs_of_2_x_run_with_their_own_import_line() -> None:
    program = """
import paddlepalm.reader.base_reader
from paddlepalm.head.base_head import Head
from paddlepalm.lr_sched import TriangularSchedualer
import paddlepalm as of_2x
from palm import Controller, compat

assert of_2x is compat
assert of_2x.reader.base_reader is compat.reader.base_reader
assert Head is compat.head.base_head.Head
assert of_2x.Controller is Controller
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
