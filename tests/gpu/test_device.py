"""Everything on a GPU, and on a pretend one: losses as on a CPU, and no wait of the host in a step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.device_modes import FIRST, MODES, OTHERS, RUNS
from helpers.once import filled_once
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS

TESTS = Path(__file__).parents[1]
WAITING = {mode: int(mode.startswith("balance")) for mode in MODES}
"""How often modes read values of a step before its update: a balance weighs the next step by these losses."""

WITHIN = {"pretend": (2e-6, 1e-2), "gpu": (1e-3, 3e-2)}
"""Relative differences of losses from a CPU's: in fp32, and in bf16 (of spans, 0.3 to 0.7 %)."""


@pytest.fixture(scope="module", params=["pretend", "gpu"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    kind: str = request.param
    if kind == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    if kind == "pretend" and (shutil.which("g++") is None or not sys.platform.startswith("linux")):
        pytest.skip("the pretend device is compiled by g++, on Linux")
    if kind == "pretend" and (torch.version.cuda or torch.version.hip):
        pytest.skip("torch built for GPUs has its own device where the pretend one would be registered")
    folder = filled_once(tmp_path_factory, kind, lambda folder: run_all_modes(folder, kind))
    return {"kind": kind, **json.loads((folder / "seen.json").read_text("utf-8"))}


def run_all_modes(folder: Path, kind: str) -> None:
    program = TESTS / "helpers" / "device_runs.py"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(program), str(folder), str(folder / "seen.json"), kind]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("mode", MODES)
def test_losses_are_those_of_the_cpu(seen: dict[str, Any], mode: str) -> None:
    expected = seen["modes"][mode]["cpu"]["losses"]
    within = WITHIN[seen["kind"]]["bf16" in mode]
    assert seen["modes"][mode]["cuda"]["losses"] == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("mode", MODES)
def test_the_host_waits_in_no_step(seen: dict[str, Any], mode: str) -> None:
    waits = [sum(step.values()) for step in seen["modes"][mode]["cuda"]["waits"]]
    assert waits == [WAITING[mode]] * len(waits), seen["modes"][mode]["cuda"]["waits"]


def test_every_optimizer_and_balance_is_tried() -> None:
    optimizers = {MODES[mode].get("optimizer", "adam") for mode in MODES}
    assert optimizers | {"adamw"} == set(OPTIMIZERS)  # one class under two names
    assert set(BALANCES) <= {MODES[mode].get("balance") for mode in MODES}


def test_only_a_logged_step_waits(seen: dict[str, Any]) -> None:
    # Every second step is logged; it waits for the values of the guard, and for its own.
    assert 0 < seen["logged waits"] <= 1


def test_a_layer_takes_no_more_operators_than_it_did(seen: dict[str, Any]) -> None:
    if seen["kind"] == "gpu":
        pytest.skip("the pretend device counts operators")
    # 16 of them are the norms of its parameters' gradients, which are one kernel on a GPU.
    assert seen["layer operators"] == 90


@pytest.mark.parametrize("task", [*FIRST, *OTHERS])
def test_evaluations_are_those_of_the_cpu_without_a_wait(seen: dict[str, Any], task: str) -> None:
    cpu = seen["evaluations"]["cpu"][task]
    cuda = seen["evaluations"]["cuda"][task]
    assert cuda["scores"] == pytest.approx(cpu["scores"], rel=10 * WITHIN[seen["kind"]][0])
    # A model copies its thresholds to the host with its first batch.
    assert sum(cuda["waits"].values()) == (task == "labels")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_evaluated_and_predicted_is_that_of_the_cpu(seen: dict[str, Any], name: str) -> None:
    cpu, cuda = seen["runs"][name]["cpu"], seen["runs"][name]["cuda"]
    within = 10 * WITHIN[seen["kind"]][0]
    assert len(cuda["losses"]) > 4
    for losses in ("losses", "resumed"):
        assert cuda[losses] == pytest.approx(cpu[losses], rel=within), losses
    assert cuda["resumed"] == cuda["losses"][4:]
    assert cuda["lines"] == cpu["lines"]
    assert set(cuda["scores"]) == set(cuda["records"])
    for task, scores in cpu["scores"].items():
        # A correlation near 0 differs by more of itself: 2.0e-4 of 0.149 was seen.
        assert cuda["scores"][task] == pytest.approx(scores, rel=10 * within, abs=3e-4), task
    for task, records in cpu["records"].items():
        assert [sorted(record) for record in records] == [sorted(record) for record in cuda["records"][task]]
        labels = [record["label"] for record in records if "label" in record]
        assert [record["label"] for record in cuda["records"][task] if "label" in record] == labels, task


def test_components_train_and_predict_together_as_on_the_cpu(seen: dict[str, Any]) -> None:
    cpu, cuda = seen["components"]["cpu"], seen["components"]["cuda"]
    within = 10 * WITHIN[seen["kind"]][0]
    assert cuda["losses"] == pytest.approx(cpu["losses"], rel=within)
    for task, rows in cpu["probs"].items():
        assert [pytest.approx(row, rel=10 * within) for row in rows] == cuda["probs"][task]
    assert cuda["waits"] <= cuda["batches"]  # each is compared with the one before
    assert cuda["passes"] == cpu["passes"] == cuda["batches"] / 2
