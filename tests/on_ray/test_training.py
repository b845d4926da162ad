"""Training with Ray's workers is training with torchrun's; runs of a grid on Ray are those without."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

import helpers
import palm
import palm.ray
from helpers import tiny
from helpers.loaded import run_script
from helpers.messages import raises
from palm.cli import main
from palm.controller.controller import read_run
from palm.core.errors import ConfigError, DataError
from palm.core.io import checksum
from palm.core.process import START


def config(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    own = {"save_path": str(folder / name), "overwrite": False, **settings}
    return tiny.config(folder, "cls", "match", with_dev=True, **own)


def weights(folder: Path) -> dict[str, str]:
    """The checksums of all models and of the state of all checkpoints."""
    return {str(file.relative_to(folder)): checksum(file) for file in folder.rglob("*.safetensors")}


def test_fewer_workers_train_on_the_rows_of_all_of_them(folder: Path) -> None:
    given = config(folder, "out", batch_size=12)
    given |= {"match.batch_size": 3, "match.gradient_accumulation_steps": 2}
    run = read_run(given, ".", [], for_train=True, needs_tasks=True)
    for size, sizes in {2: [(12, 2), (3, 4)], 3: [(8, 2), (2, 4)], 1: [(12, 4), (3, 8)]}.items():
        tasks = palm.ray._divided(run, 4, size).tasks
        found = [(task.settings.batch_size, task.settings.gradient_accumulation_steps) for task in tasks]
        assert found == sizes


@pytest.mark.parametrize(
    ("settings", "place"),
    [({"batch_size": 4}, "a step of 'cls' cannot be divided among 3 workers"), ({"resume": "."}, "resume")],
)
def test_a_run_that_could_not_be_restarted_is_refused_before_it_starts(
    folder: Path, settings: dict[str, Any], place: str
) -> None:
    with raises(ConfigError, place):
        palm.ray.train(config(folder, "out", **settings), workers=(2, 4))


@pytest.mark.parametrize("word", ["worker=4", "workers=a", "workers=1,2,3", "max_failures=1,2", "4"])
def test_the_option_ray_takes_numbers_of_known_names(
    tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tmp_path / "config.yaml"), "--ray", word]) == 2
    assert "--ray should be NAME=" in capsys.readouterr().err


def killed_in(folder: Path, name: str) -> threading.Thread:
    """Kill one of Ray's workers once the run has a checkpoint."""

    def kill() -> None:
        while not list((folder / name).glob("step_*/manifest.json")):
            time.sleep(0.05)
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and b"RayTrainWorker" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_workers_equal_ranks_bit_by_bit_also_after_one_is_killed(tmp_path: Path) -> None:
    tiny.write_files(tmp_path, rows=200)
    settings = {"num_epochs": 4, "save_every_n_steps": 7, "keep_last_n": 2}
    (tmp_path / "ranks.yaml").write_text(
        yaml.safe_dump(config(tmp_path, "ranks", **settings)), encoding="utf-8"
    )
    launcher = Path(helpers.__file__).with_name("torchrun.py")
    words = ("--standalone", "--nproc-per-node=2", START[-1], "train", str(tmp_path / "ranks.yaml"))
    status, log = run_script(launcher, tmp_path, *words)
    assert status == 0, log
    thread = killed_in(tmp_path, "workers")
    result = palm.ray.train(config(tmp_path, "workers", **settings), workers=2)
    assert not thread.is_alive()
    assert result.steps == {"cls": 100, "match": 100}
    assert weights(tmp_path / "workers") == weights(tmp_path / "ranks")
    assert {"cls/best_model/model.safetensors", "step_196/optimizer.safetensors"} <= weights(
        tmp_path / "workers"
    ).keys()
    assert palm.ray.train(config(tmp_path, "workers", **settings), workers=2).steps == result.steps


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_one_of_two_workers_gives_the_weights_of_two_up_to_rounding(folder: Path) -> None:
    no_dropout = {"dropout_prob": 0.0, **tiny.STILL}
    palm.ray.train(config(folder, "two", **no_dropout), workers=(1, 2))
    # The cluster has room for one worker with two CPUs.
    result = palm.ray.train(config(folder, "one", **no_dropout), workers=(1, 2), cpus_per_worker=2)
    assert result.steps == {"cls": 10, "match": 10}
    one, two = (load_file(folder / name / "match/infer_model/model.safetensors") for name in ("one", "two"))
    assert max(float((one[name] - two[name]).abs().max()) for name in two) < 1e-5
    written = yaml.safe_load((folder / "one" / "resolved_config.yaml").read_text(encoding="utf-8"))
    assert written["tasks"]["cls"]["gradient_accumulation_steps"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_an_error_in_the_data_ends_the_run_at_once_with_its_place(folder: Path) -> None:
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "cls.tsv").write_text("\n".join([*lines[:7], "9\tthe red door"]), encoding="utf-8")
    with raises(DataError, f"{folder / 'cls.tsv'}:8"):
        palm.ray.train(config(folder, "out"), workers=2, max_failures=-1)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_runs_on_ray_give_the_table_of_runs_without(folder: Path) -> None:
    chosen = {"seeds": 2, "workers": 2}
    palm.compare(config(folder, "out"), output=folder / "here", **chosen)
    palm.compare(config(folder, "out"), output=folder / "there", pool=palm.ray.Pool(), **chosen)
    tables = [(folder / place / "compare.csv").read_bytes() for place in ("here", "there")]
    assert tables[0] == tables[1]
    runs = list((folder / "here" / "runs").glob("*/result.json"))
    assert len(runs) == 10
    for file in runs:
        other = folder / "there" / file.relative_to(folder / "here")
        results = [json.loads(each.read_text(encoding="utf-8")) for each in (file, other)]
        assert results[0] | {"seconds": 0} == results[1] | {"seconds": 0}
