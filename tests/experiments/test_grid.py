"""A grid of runs: killed at any moment, it continues; what palm wrote, and only that, is removed."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.messages import raises
from palm.core.errors import ConfigError, PalmError, ResourceError
from palm.core.io import new_directory
from palm.experiments import grid as worker
from palm.experiments.grid import Grid, GridRun, best_evaluation, remove_models, slots_of
from palm.train.callbacks import Evaluated, Planned

PROGRAM = """
import json, sys
from pathlib import Path
from palm.experiments.grid import Grid, GridRun
settings = json.loads(Path(sys.argv[1]).read_text())
print(list(Grid(Path(sys.argv[2])).train([GridRun("one", settings)])))
"""


def settings_of(folder: Path, **settings: Any) -> dict[str, Any]:
    tiny.write_files(folder)
    given = tiny.config(folder, "cls", **{"num_epochs": 1, **settings})
    tasks = given.pop("tasks")
    return {"global": given, "tasks": tasks, "backbone": json.loads((folder / "backbone.json").read_text())}


def waited_for(folder: Path, pattern: str = "out/history.jsonl") -> None:
    until = time.monotonic() + 120
    while not list(folder.glob(pattern)):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.usefixtures("loaded_runs")  # not those of the grid that is killed
def test_a_run_whose_grid_is_killed_ends_with_a_checkpoint_and_continues(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, num_epochs=30)
    (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "settings.json"), str(tmp_path / "grid")]
    grid = Grid(tmp_path / "grid")
    run = GridRun("one", settings)
    folder = grid.folder(run)
    with subprocess.Popen(words) as killed:
        waited_for(folder)
        killed.send_signal(signal.SIGKILL)
    # The second one waits until the run that was left has ended.
    waited_for(folder, "out/step_*/manifest.json")
    (checkpoint,) = folder.glob("out/step_*")
    assert 0 < int(checkpoint.name.removeprefix("step_")) < 300
    ((_, ended),) = grid.train([run])
    assert (ended["steps"], ended["state"]) == ({"cls": 300}, "done")
    assert f"resumed from {checkpoint}" in (folder / "log.txt").read_text(encoding="utf-8")
    assert not list(folder.glob("out/**/manifest.json"))  # models are removed once it is scored


@pytest.mark.usefixtures("loaded_runs")
def test_a_run_that_fails_is_reported_with_its_own_words(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, learning_rate="fast")
    grid = Grid(tmp_path / "grid")
    run = GridRun("one", settings)
    with pytest.raises(PalmError) as caught:
        list(grid.train([run]))
    log = grid.folder(run) / "log.txt"
    assert [
        word for word in ("exit code 2", "learning_rate", "'fast'", str(log)) if word not in str(caught.value)
    ] == []


@pytest.mark.usefixtures("loaded_runs")
def test_a_run_whose_data_change_meanwhile_has_its_result_once_they_are_restored(tmp_path: Path) -> None:
    run = GridRun("one", settings_of(tmp_path, num_epochs=30))
    data = tmp_path / "cls.tsv"
    grid = Grid(tmp_path / "grid")
    folder = grid.folder(run)
    rows = data.read_bytes()
    with ThreadPoolExecutor(1) as threads:
        trained = threads.submit(lambda: list(grid.train([run])))
        waited_for(folder)
        data.write_bytes(rows + rows.splitlines(keepends=True)[-1])
        assert isinstance(error := trained.exception(120), PalmError)
    assert str(data) in str(error)
    assert grid.result(run) is None
    data.write_bytes(rows)
    ((_, result),) = grid.train([run])
    assert (result["state"], result["steps"]) == ("done", {"cls": 300})


def test_a_run_that_does_not_fit_into_memory_has_failed_and_does_not_end_the_grid(tmp_path: Path) -> None:
    class Full:
        def train(self) -> None:
            raise ResourceError("the GPU has too little memory for a step\nsaved: nothing")

    job: Any = {"test": {}}
    result = worker._trained(tmp_path, Full(), job)  # type: ignore[arg-type]
    assert (result["state"], result["score"]) == ("failed", None)
    assert result["why"] == "the GPU has too little memory for a step"


class _Killed:
    """The process of a run that the system has ended."""

    stdin = io.BytesIO()
    returncode = -signal.SIGKILL


def test_a_run_that_the_system_killed_has_failed_and_is_tried_again(tmp_path: Path) -> None:
    grid = Grid(tmp_path)
    run = GridRun("one", RUN)
    result = grid._result(run, _Killed())  # type: ignore[arg-type]
    assert (result["state"], result["score"]) == ("failed", None)
    assert grid.result(run) is None


def test_the_best_score_is_of_the_last_stage_the_first_of_equal_ones_and_a_number() -> None:
    events = [Planned(), Evaluated(5, {}, mean=0.9), Planned()]
    events += [Evaluated(step, {}, mean=mean) for step, mean in ((6, 0.5), (7, math.nan), (8, 0.5), (9, 0.4))]
    assert best_evaluation(events) == (6, 0.5)
    assert best_evaluation(events[:3]) == (0, None)


RUN = {"global": {"seed": 1}, "tasks": {}, "backbone": {}}


def test_a_run_is_found_by_all_that_its_result_depends_on(tmp_path: Path) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("label\ttext_a\n", encoding="utf-8")
    settings = {**RUN, "tasks": {"cls": {"train_file": str(data), "batch_size": 8}}}
    run = GridRun("one", settings)
    grid = Grid(tmp_path / "grid")
    same = {**settings, "global": {"seed": 1, "save_path": "elsewhere", "verbose": True}}
    assert grid.folder(GridRun("one", same)) == grid.folder(run)
    others = [
        GridRun("one", {**settings, "global": {"seed": 2}}),
        GridRun("one", {**settings, "tasks": {"cls": {"train_file": str(data), "batch_size": 4}}}),
        GridRun("one", settings, {"cls": str(data)}),
        GridRun("one", settings, model="last"),
    ]
    assert len({grid.digest(each) for each in (run, *others)}) == 5
    data.write_text("label\ttext_a\n1\tred\n", encoding="utf-8")
    assert Grid(tmp_path / "grid").digest(run) != grid.digest(run)
    assert grid.folder(run).parent == tmp_path / "grid" / "runs"
    assert re.fullmatch("one-[0-9a-f]{8}", grid.folder(run).name)


def test_models_are_removed_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for place in ("cls/infer_model", "step_5", "stages/1-cls/weights"):
        with new_directory(out / place) as part:
            (part / "model.safetensors").write_bytes(b"weights")
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    remove_models(tmp_path)
    assert [path.name for path in sorted(out.rglob("*")) if path.is_file()] == ["notes.txt"]


@pytest.mark.usefixtures("loaded_runs")
def test_a_run_on_two_devices_has_the_scores_of_one_with_the_double_batch(tmp_path: Path) -> None:
    data = str(tmp_path / "cls.tsv")
    more = {"dev_file": data, "eval_every_n_steps": 5, "num_epochs": 8, "learning_rate": 0.03}
    off = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    ways = {"one": {"batch_size": 8}, "two": {"batch_size": 4, "num_devices": 2, "device": "cpu"}}
    runs = []
    for name, way in ways.items():
        settings = settings_of(tmp_path, dropout_prob=0, **more, **way)
        settings["backbone"].update(off)
        runs.append(GridRun(name, settings, test={"cls": data}))
    grid = Grid(tmp_path / "grid")
    scored: dict[str, Any] = {run.label: {**result, "seconds": 0} for run, result in grid.train(runs)}
    assert scored["one"] == scored["two"]
    assert scored["two"]["score"] > 0.5  # 0.375 at first
    assert not list((tmp_path / "grid").rglob("*.safetensors"))


def test_gpus_are_shared_out_by_runs_that_need_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,7")
    groups = [slot["CUDA_VISIBLE_DEVICES"] for slot in slots_of(None, use_gpu=True, size=2)]
    assert groups == ["0,1", "2,3"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots_of(1, True, size=8)] == ["0,1,2,3,7"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots_of(6, True)] == ["0", "1", "2", "3", "7", "0"]


def test_runs_share_the_cores_of_a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert slots_of(None, use_gpu=False) == [{}]
    assert slots_of(2, use_gpu=False) == [{"OMP_NUM_THREADS": "4"}] * 2
    assert slots_of(2, use_gpu=False, size=2) == [{"OMP_NUM_THREADS": "2"}] * 2
    with raises(ConfigError, "workers: 0"):
        slots_of(0, use_gpu=False)
