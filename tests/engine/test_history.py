"""history.jsonl: what a run tells, and how a resumed run continues it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import palm
from helpers.watching import controller, timeless
from palm.engine.run.result import TrainingResult

ROOT = Path(__file__).resolve().parents[2]

KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from helpers.watching import Killer, controller
controller(Path(sys.argv[1])).train(callbacks=[Killer(26)])
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, controller(folder).train()


def test_a_run_tells_its_plan_its_logged_steps_and_its_end(undisturbed: tuple[Path, TrainingResult]) -> None:
    folder, result = undisturbed
    lines = timeless(folder / "out" / "history.jsonl")
    start, *_, end = lines
    assert start["tasks"]["cls"] == {
        "is_target": True,
        "expected_steps": 20,
        "steps_per_epoch": 10,
        "rows": 40,
        "mix_ratio": 1.0,
    }
    last = sum(result.steps.values())
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == list(range(3, last + 1, 3))
    assert [line["rows"] for line in steps] == [4 * number for number in range(3, last + 1, 3)]
    assert all(line["grad_norm"] > 0 and line["tokens"] > line["rows"] for line in steps)
    assert end == {"event": "end", "step": last, "reason": "finished"}
    (draws,) = [line["steps"] for line in lines if line["event"] == "draws" and line["step"] == last]
    assert draws == result.steps


def test_the_running_mean_forgets_by_two_percent_a_step(tmp_path: Path) -> None:
    run = controller(tmp_path, print_every_n_steps=1)
    run.train()
    steps = [line for line in timeless(tmp_path / "out" / "history.jsonl") if line["event"] == "step"]
    total = weight = 0.0
    for line in (line for line in steps if line["task"] == "mrc"):
        total, weight = line["loss"] + 0.98 * total, 1 + 0.98 * weight
        assert line["mean_loss"] == pytest.approx(total / weight, rel=1e-5)


def test_evaluations_have_all_metrics_and_the_loss_of_the_dev_rows(
    undisturbed: tuple[Path, TrainingResult],
) -> None:
    folder, result = undisturbed
    found = [line for line in timeless(folder / "out" / "history.jsonl") if line["event"] == "evaluation"]
    written = (folder / "out" / "evaluation.jsonl").read_text(encoding="utf-8").splitlines()
    assert [{"step": line["step"], "scores": line["scores"]} for line in found] == [*map(json.loads, written)]
    assert all(0.5 < line["dev_loss"]["cls"] < 2 for line in found)
    best = [line for line in found if "cls" in line["best"]][-1]
    assert (result.best["cls"].step, result.best["cls"].scores) == (best["step"], best["scores"]["cls"])


def test_a_killed_run_goes_on_without_gap_or_double_line(
    undisturbed: tuple[Path, TrainingResult], tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    history = tmp_path / "out" / "history.jsonl"
    assert timeless(history)[-1]["step"] > 20
    with history.open("a") as file:
        file.write('{"event": "ste')  # as far as the system came

    result = controller(tmp_path, resume="auto").train()
    assert timeless(history) == timeless(undisturbed[0] / "out" / "history.jsonl")
    assert result.steps == undisturbed[1].steps
    assert result.best == undisturbed[1].best


@pytest.mark.parametrize("where", ["before the line of the checkpoint", "in the run after it", "at its end"])
def test_whatever_a_kill_left_is_cut_behind_the_checkpoint(
    undisturbed: tuple[Path, TrainingResult], tmp_path: Path, where: str
) -> None:
    shutil.copytree(undisturbed[0], tmp_path, dirs_exist_ok=True)
    history = tmp_path / "out" / "history.jsonl"
    lines = history.read_text(encoding="utf-8").splitlines()
    (saved,) = [k for k, line in enumerate(lines) if '"step": 20, "kind": "checkpoint"' in line]
    kept = {"before the line of the checkpoint": saved, "in the run after it": saved + 3, "at its end": None}
    history.write_text("\n".join(lines[: kept[where]]) + "\n", encoding="utf-8")

    result = controller(tmp_path, resume=str(tmp_path / "out" / "step_20")).train()
    assert timeless(history) == timeless(undisturbed[0] / "out" / "history.jsonl")
    seconds = [
        line["seconds"] for line in map(json.loads, history.read_text().splitlines()) if "seconds" in line
    ]
    assert seconds == sorted(seconds)
    assert result.seconds == pytest.approx(seconds[-1], abs=0.1)


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    def fail(event: object) -> None:
        if getattr(event, "number", 0) == 4:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        controller(tmp_path).train(callbacks=[fail])
    assert timeless(tmp_path / "out" / "history.jsonl")[-1] == {
        "event": "end",
        "step": 4,
        "reason": "stopped",
    }


def test_a_damaged_history_is_named(tmp_path: Path) -> None:
    controller(tmp_path).train()
    history = tmp_path / "out" / "history.jsonl"
    lines = history.read_text(encoding="utf-8").splitlines()
    history.write_text("\n".join([lines[0], "garbage", *lines[2:]]), encoding="utf-8")
    with pytest.raises(palm.StorageError, match=r"history\.jsonl:2: not an event of a run: 'garbage'"):
        controller(tmp_path, resume="auto").train()
