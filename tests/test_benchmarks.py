"""The program that measures GPUs runs from end to end, on whatever machine there is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_gpu_benchmark_runs_on_any_machine() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--tiny"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    has_peer = all(map(importlib.util.find_spec, ("transformers", "accelerate")))
    rows = [line.split(" | ")[0] for line in done.stdout.splitlines() if line.startswith("| ")]
    table = ["|", "| palm", "| HF bf16 sdpa"] if has_peer else ["|", "| palm"]
    assert rows == 2 * table
