"""Training and evaluation on a pretend CUDA device: losses as on a CPU, and no wait of the host in a step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import pretend_modes
from helpers.once import filled_once

TESTS = Path(__file__).parents[1]
WAITING = {"balance"}
"""Modes that read a step's loss before its update: docs/speed.md says why."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("g++") is None or not sys.platform.startswith("linux"):
        pytest.skip("the pretend device is compiled by g++, on Linux")
    folder = filled_once(tmp_path_factory, "pretend", run_all_modes)
    found: dict[str, Any] = json.loads((folder / "seen.json").read_text("utf-8"))
    return found


def run_all_modes(folder: Path) -> None:
    program = TESTS / "helpers" / "pretend_runs.py"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(program), str(folder), str(folder / "seen.json")],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("mode", pretend_modes.MODES)
def test_losses_are_those_of_the_cpu(seen: dict[str, Any], mode: str) -> None:
    expected = seen["modes"][mode]["cpu"]["losses"]
    within = 1e-2 if "bf16" in mode else 2e-6  # 8 bits, after six steps
    assert seen["modes"][mode]["cuda"]["losses"] == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("mode", pretend_modes.MODES)
def test_the_host_waits_in_no_step(seen: dict[str, Any], mode: str) -> None:
    waits = [sum(step.values()) for step in seen["modes"][mode]["cuda"]["waits"]]
    assert waits == [int(mode in WAITING)] * len(waits), seen["modes"][mode]["cuda"]["waits"]


@pytest.mark.parametrize("task", ["cls", "match", "mlm", "mrc", "span", "tags"])
def test_evaluations_are_those_of_the_cpu_without_a_wait(seen: dict[str, Any], task: str) -> None:
    cpu = seen["predictions"][task]["cpu"]
    cuda = seen["predictions"][task]["cuda"]
    assert cuda["scores"] == pytest.approx(cpu["scores"], rel=1e-5)
    assert cuda["waits"] == {}


def test_a_run_with_stages_resumed_predicted_and_exported_is_that_of_the_cpu(seen: dict[str, Any]) -> None:
    cpu, cuda = seen["run"]["cpu"], seen["run"]["cuda"]
    assert len(cuda["losses"]) > 4
    assert len(cuda["staged"]) > 4
    for name in ("losses", "resumed", "staged", "one"):
        assert cuda[name] == pytest.approx(cpu[name], rel=1e-5), name
    assert cuda["resumed"] == cuda["losses"][4:]
    assert {task: pytest.approx(scores, rel=1e-4) for task, scores in cpu["scores"].items()} == cuda["scores"]
    for task, records in cpu["records"].items():
        assert [sorted(record) for record in records] == [sorted(record) for record in cuda["records"][task]]
    assert [row["label"] for row in cuda["records"]["cls"]] == [row["label"] for row in cpu["records"]["cls"]]


def test_components_train_and_predict_together_as_on_the_cpu(seen: dict[str, Any]) -> None:
    cpu, cuda = seen["components"]["cpu"], seen["components"]["cuda"]
    assert cuda["losses"] == pytest.approx(cpu["losses"], rel=1e-5)
    for task, rows in cpu["probs"].items():
        assert [pytest.approx(row, rel=1e-4) for row in rows] == cuda["probs"][task]
    # Each head asks once whether its batch is the last one's; of the first batch nobody asks.
    assert cuda["waits"] == cuda["batches"] - 1
