"""`palm sweep`: which points there are, real runs of some, the best as a configuration, random trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import palm
from helpers import tiny
from helpers.messages import raises
from palm.cli import main
from palm.config import read_config
from palm.controller.resolve import resolve
from palm.core.errors import ConfigError
from palm.experiments.grid import Result, word_of
from palm.experiments.sweep import Sweep, Trial, grid_words, points_of, space_of

pytestmark = pytest.mark.usefixtures("loaded_runs")


def made(folder: Path, **settings: Any) -> dict[str, Any]:
    tiny.write_files(folder)
    given = tiny.config(folder, "cls", **{"num_epochs": 1, "learning_rate": 3e-3, **settings})
    del given["overwrite"]
    given["tasks"]["cls"]["dev_file"] = given["tasks"]["cls"]["train_file"]
    return given


def test_a_folder_without_a_name_has_none_beside_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^save_path: /"):
        palm.sweep(made(tmp_path, save_path="/"), {"learning_rate": [1e-3]})


def test_a_grid_is_trained_once_and_its_best_is_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "palm")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(made(tmp_path)), encoding="utf-8")
    words = ["sweep", str(tmp_path / "config.yaml"), "--grid", "learning_rate=1e-9,1e-2"]
    words += ["--grid=cls.batch_size=8"]
    assert main(words) == 0
    assert sum("learning_rate = 1e-09 overrides" in line for line in caplog.messages) == 1
    folder = tmp_path / "out_sweep"
    found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    expected = [{"learning_rate": 1e-9, "cls.batch_size": 8}, {"learning_rate": 1e-2, "cls.batch_size": 8}]
    assert [trial["values"] for trial in found["trials"]] == expected
    last = capsys.readouterr().out.splitlines()[-1]
    assert found["best"] in last
    assert last.endswith(f"palm train {folder / 'best.yaml'}")
    best = resolve(read_config(folder / "best.yaml", argv=[]))
    chosen = next(trial for trial in found["trials"] if trial["run"] == found["best"])
    assert best.optimizer.settings["learning_rate"] == chosen["values"]["learning_rate"]
    assert best.tasks[0].settings.batch_size == 8
    assert best.settings.save_path == folder / "best"
    history = folder / "runs" / found["best"] / "out" / "history.jsonl"
    lines = map(json.loads, history.read_text(encoding="utf-8").splitlines())
    scores = [line["scores"]["cls"]["accuracy"] for line in lines if line["event"] == "evaluation"]
    assert chosen["result"]["score"] == max(scores)

    assert main(words) == 0  # nothing is trained again
    assert json.loads((folder / "sweep.json").read_text(encoding="utf-8")) == found
    one = palm.sweep(tmp_path / "config.yaml", {"learning_rate": [1e-2], "cls.batch_size": [8]})
    assert one.trials == [one.best]
    assert one.best.run == found["trials"][1]["run"]
    assert len(list((folder / "runs").iterdir())) == 2


def test_runs_that_are_equally_good_are_named() -> None:
    result = Result(state="done", why="", step=8, score=None, steps={}, seconds=1.0, test={})
    scores = (0.5, 0.75, 0.75, None, 0.75)
    trials = [Trial(f"{k:04d}", {"rate": k}, {**result, "score": score}) for k, score in enumerate(scores)]
    found = Sweep(trials, trials[1], Path("best.yaml"))
    assert found.ties == ["0002", "0004"]
    assert "best: 0001 (equal: 0002, 0004); train it:" in str(found)
    assert Sweep(trials, trials[0], Path("best.yaml")).ties == []


def test_points_are_all_combinations() -> None:
    space = space_of({"learning_rate": ["1e-4", "5e-4"], "intent.batch_size": [8, 16]})
    points = points_of(space, None, seed=1)
    assert points == [
        {"learning_rate": rate, "intent.batch_size": rows} for rate in ("1e-4", "5e-4") for rows in (8, 16)
    ]
    drawn = points_of(space, 400, seed=1)
    assert points_of(space, 20, seed=1) == drawn[:20]
    assert [drawn.count(point) for point in points] == pytest.approx([100] * 4, abs=30)
    assert [word_of(each) for each in ("a b", 1e-5, True, None, [1, 0.5])] == [
        *("a b", "1e-05", "true", "null", "[1, 0.5]")
    ]


def test_a_space_is_read_from_words() -> None:
    given = grid_words(["rate=1e-4,5e-4", "mix_ratio=[1,0.5],[1,1]", "lora={rank: 4},null"])
    ranges = grid_words(["decay={low: 1e-4, high: 0.1, log: true}", "n={low: 2, high: 8}, 64"])
    found = space_of({**given, **ranges, "drop": {"low": 0, "high": 0.19}})
    assert {name: found[name] for name in (*given, "n")} == {
        "rate": [1e-4, 5e-4],
        "mix_ratio": [[1, 0.5], [1, 1]],
        "lora": [{"rank": 4}, None],
        "n": [2, 3, 4, 5, 6, 7, 8, 64],
    }
    assert found["decay"] == pytest.approx([1e-4 * 1000 ** (k / 19) for k in range(20)])
    assert found["drop"] == pytest.approx([k / 100 for k in range(20)])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: space_of({}), ["--grid"]),
        (lambda: space_of({"a": 3}), ["sweep: a", "3"]),
        (lambda: space_of({"a": {"low": 3, "high": 1}}), ["sweep: a", "{'low': 3, 'high': 1}"]),
        (lambda: space_of({"a": [8, {"low": "x", "high": 1}]}), ["sweep: a", "'x'"]),
        (lambda: space_of({"a": {"low": 0, "high": 1, "log": True}}), ["sweep: a", "log"]),
        (lambda: space_of({"save_path": ["a", "b"], "b": []}), ["save_path", "sweep: b", "[]"]),
        (lambda: grid_words(["rate"]), ["--grid", "'rate'"]),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(make: Any, named: list[str]) -> None:
    with raises(ConfigError, *named):
        make()


def test_a_setting_that_nobody_has_is_reported_before_the_first_run(tmp_path: Path) -> None:
    with raises(ConfigError, "--learning_rat: ", "'learning_rate'"):
        palm.sweep(made(tmp_path), {"learning_rat": [1e-3]})
    assert not (tmp_path / "out_sweep").exists()


def test_stages_are_not_swept(folder: Path) -> None:
    given = tiny.config(folder, "cls", with_dev=True, stages=[{"learning_rate": 1e-4}])
    with pytest.raises(ConfigError) as caught:
        palm.sweep(given, {"learning_rate": [1e-3]}, output=folder / "sweep")
    assert "stages: " in str(caught.value)
    assert not (folder / "sweep").exists()


def test_trials_continue_where_they_were(tmp_path: Path) -> None:
    given = made(tmp_path, num_epochs=0.3)
    space = {"learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}, "cls.batch_size": [4, 8]}
    first = palm.sweep(given, space, trials=1)
    both = palm.sweep(given, space, trials=2)
    assert both.trials[0] == first.trials[0]
    assert both.trials[1].values != first.trials[0].values
    assert len(list((tmp_path / "out_sweep" / "runs").iterdir())) == 2
