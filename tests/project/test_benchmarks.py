"""The programs that measure speed run from end to end, on whatever machine there is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


HAS_PEER = all(map(importlib.util.find_spec, ("transformers", "accelerate")))


def lines_of(program: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / program), *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_gpu_benchmark_runs_on_any_machine() -> None:
    rows = [line.split(" | ")[0] for line in lines_of("gpu.py", "--tiny") if line.startswith("| ")]
    table = ["|", "| palm", "| HF bf16 sdpa"] if HAS_PEER else ["|", "| palm"]
    assert rows == 2 * table


def test_the_cpu_benchmark_runs_on_a_tiny_encoder() -> None:
    lines = lines_of("speed.py", "--shape", "tiny", "--case", "tagging", "mix", "--quick")
    rows = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert rows[:3] == ["|", "| palm", "| palm fp32"]
    assert len(rows) == (6 if HAS_PEER else 3)
    assert any("steps among three tasks took" in line for line in lines)
