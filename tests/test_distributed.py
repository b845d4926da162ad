"""Several processes are one with the larger batch: losses, weights, predictions; and nobody waits forever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
import ranks
from palm.distributed import dealt, is_launched, launch
from palm.distributed.launch import program

ROOT = Path(__file__).resolve().parents[1]


def environment(**more: str) -> dict[str, str]:
    """That of a user's shell: not that of pytest, under which palm starts no processes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def start(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, 8 rows a step."""
    folder = tmp_path_factory.mktemp("one")
    ranks.write_files(folder)
    (folder / "rank0.json").write_text(json.dumps(ranks.run(folder, 1)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes, 4 rows a step each, which the program starts by itself."""
    folder = tmp_path_factory.mktemp("two")
    ranks.write_files(folder)
    done = start(str(ROOT / "tests" / "ranks.py"), str(folder), "2")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "stdout.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def recorded(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    return found


def seen(folder: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
    return found


# The gradient of the biases of start and end logits is 0 but for rounding, because a softmax does not
# feel what is added to all logits; Adam makes steps of any size of it.
UNFELT = "paradigms.@mrc.out.bias"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_lose_and_weigh_what_one_with_the_double_batch_does(
    one: Path, two: Path, parallel: str
) -> None:
    alone, together = recorded(one, parallel), recorded(two, parallel)
    assert [task for task, _ in together["losses"]] == [task for task, _ in alone["losses"]]
    for (_, expected), (_, loss) in zip(alone["losses"], together["losses"], strict=True):
        assert loss == pytest.approx(expected, abs=2e-6)
    assert together["weights"].keys() == alone["weights"].keys()
    for name in alone["weights"].keys() - {UNFELT}:
        torch.testing.assert_close(together["weights"][name], alone["weights"][name], atol=2e-6, rtol=0)


def test_gradients_that_travel_in_bf16_are_rounded_to_8_bits(one: Path, two: Path) -> None:
    alone, together = (dict(enumerate(recorded(place, "bf16")["losses"])) for place in (one, two))
    differences = [abs(together[k][1] - alone[k][1]) / alone[k][1] for k in alone]
    assert 1e-6 < max(differences) < 2**-8


def test_files_of_predictions_are_those_of_one_process_byte_for_byte(two: Path, tmp_path: Path) -> None:
    for task in (*ranks.TASKS, "one"):
        model = palm.load_model(
            two / "out" / ("cls" if task == "one" else task) / "infer_model", precision="fp32"
        )
        model.batch_size = 4 if task == "one" else 3
        data = {"mrc": "mrc.json"}.get(task, f"{task}.tsv")
        model.predict_file(two / data, tmp_path / task)
        for file in (tmp_path / task).iterdir():
            assert file.read_bytes() == (two / "out" / task / file.name).read_bytes(), file


def test_every_rank_can_read_all_predictions(two: Path) -> None:
    expected = [ranks.ROWS] * 3 + [1]
    assert [seen(two, rank)["counts"] for rank in (0, 1)] == [expected, expected]
    assert [seen(two, rank)["ranks"] for rank in (0, 1)] == [2, 2]


def test_a_trainer_s_batch_size_is_that_of_all_devices(one: Path, two: Path) -> None:
    losses, labels = seen(one)["trainer"]
    for rank in (0, 1):
        theirs, predicted = seen(two, rank)["trainer"]
        assert theirs == pytest.approx(losses, abs=1e-5)
        assert [each["label"] for each in predicted] == [each["label"] for each in labels]


def test_only_the_first_process_reports(two: Path) -> None:
    lines = (two / "stdout.txt").read_text(encoding="utf-8").splitlines()
    assert lines.count("cls: train finished!") == 1
    assert lines.count("2 devices: starting one process for each") == 1


def test_what_is_dealt_out_goes_to_everybody_equally_often_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands = []
    for rank in range(3):
        monkeypatch.setattr("palm.distributed.group.rank", lambda rank=rank: rank)
        monkeypatch.setattr("palm.distributed.group.num_ranks", lambda: 3)
        hands.append(dealt("abcdefg"))
    assert hands == [["a", "d", "g"], ["b", "e", "g"], ["c", "f", "g"]]


def test_a_program_is_started_again_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/demo.py", "--batch_size", "8"])
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    assert program() == ["/x/demo.py", "--batch_size", "8"]
    monkeypatch.setattr(main, "__spec__", type("Spec", (), {"name": "palm.__main__"}))
    assert program() == ["-m", "palm", "--batch_size", "8"]


def test_several_devices_need_a_program_and_enough_of_them() -> None:
    assert not is_launched()
    cpu = torch.device("cpu")
    launch(cpu, "auto")
    launch(cpu, 1)
    with pytest.raises(palm.ConfigError, match=r"num_devices: 2 processes need a program in a file"):
        launch(cpu, 2)
    with pytest.raises(palm.ConfigError, match=r"num_devices should be 1 or more, or auto, not 0"):
        launch(cpu, 0)
    with pytest.raises(palm.ConfigError, match=r"num_devices is 64, but \d+ GPUs are visible"):
        launch(torch.device("cuda"), 64)
