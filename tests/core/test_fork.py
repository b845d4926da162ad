"""Forked processes, as of multiprocessing and of servers that load a model before they fork."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
import palm, torch

torch.set_num_threads(2)
layer, rows = torch.nn.Linear(512, 512), torch.ones(512, 512)
layer(rows).softmax(-1)  # starts the threads
if not (child := os.fork()):
    layer(rows).softmax(-1)
    os._exit(torch.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_computes_with_one_thread_and_does_not_hang() -> None:
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "1 2\n", ended.stderr
