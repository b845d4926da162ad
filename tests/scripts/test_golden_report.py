"""The report of differences to recorded numbers: what it measures, and that one command prints it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.golden_report import GoldenReport, Measured

ROOT = Path(__file__).resolve().parents[2]


def test_the_largest_differences_and_the_share_of_their_tolerance_are_measured() -> None:
    measured = Measured()
    measured.take(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), atol=1.0, rtol=0.0)
    measured.take([4.0], [4.1], atol=0.1, rtol=0.1)
    assert (measured.tensors, measured.numbers) == (2, 3)
    assert measured.absolute == 0.5
    assert measured.relative == 0.25  # 0.5 of 2
    assert measured.used == 0.5
    assert measured.tolerances == ((1.0, 0.0), (0.1, 0.1))


def test_what_tests_compare_with_is_heard_and_left_as_it_was() -> None:
    before = (torch.testing.assert_close, np.testing.assert_allclose)
    report = GoldenReport()
    report.listen()
    report._current = measured = Measured()
    try:
        torch.testing.assert_close(torch.ones(3), torch.ones(3) + 1e-6)
        np.testing.assert_allclose([1.0], [1.5], rtol=0, atol=0.5)
        assert pytest.approx(2.0, abs=0.1) == 2.05
        with pytest.raises(AssertionError):
            torch.testing.assert_close(torch.zeros(1), torch.ones(1), rtol=0, atol=0.5)
    finally:
        report.stop()
    assert (torch.testing.assert_close, np.testing.assert_allclose) == before
    assert measured.numbers == 6
    assert measured.used == 2.0
    assert measured.tolerances == ((1e-5, 1.3e-6), (0.5, 0.0), (0.1, 0.0))


def test_one_command_prints_a_line_for_every_comparison() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "golden_report.py"), "-k", "0_2_1 and warmup"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("lr sched: rates")]
    assert len(lines) == 2
    for line in lines:
        assert line[-6] == "20"
        assert line[-3] == "1.0e-10"
        assert line[-1] == "%"
        assert float(line[-4]) < 1e-6
