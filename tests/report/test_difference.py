"""`palm diff`: nothing between equal runs, and each thing that differs between others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import runs
from palm.cli import main
from palm.report.difference import Difference, differences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal runs, `run` and `again`, and one with another rate and other data, `other`."""
    place = tmp_path_factory.mktemp("difference")
    runs.train(place, "cls", "match")
    runs.train(place, "cls", "match", save_path=str(place / "again"))
    runs.train(
        place, "cls", "match", rows=48, save_path=str(place / "other"), learning_rate=1e-2, num_epochs=1
    )
    return place


def of_kind(found: list[Difference], kind: str) -> dict[tuple[str, str], tuple[Any, Any]]:
    return {(d.where, d.name): (d.first.value, d.second.value) for d in found if d.kind == kind}


def test_equal_runs_differ_in_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert differences(str(folder / "run"), str(folder / "again")) == []
    assert main(["diff", str(folder / "run"), str(folder / "again")]) == 0
    assert str(folder / "again") in capsys.readouterr().out


def test_settings_data_steps_and_scores_that_differ_are_reported(folder: Path) -> None:
    found = differences(str(folder / "run"), str(folder / "other"))
    assert of_kind(found, "settings") == {("", "num_epochs"): (2, 1), ("", "learning_rate"): (1e-3, 1e-2)}
    data = of_kind(found, "data")
    assert data["cls", "training rows"] == (40, 48)
    assert ("match", "SHA-256 of train_file") in data
    assert ("cls", "rows of dev_file") not in data
    assert of_kind(found, "steps")["cls", "planned steps"] == (20, 12)
    assert {where for where, _ in of_kind(found, "scores")} <= {"cls", "match"}
    assert of_kind(found, "versions") == {}


def test_the_command_shows_origins_and_ends_with_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = folder / "run" / "resolved_config.yaml"
    words = ["train", str(config), "--save_path", str(tmp_path / "new"), "--learning_rate", "3e-3"]
    assert main(words) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(folder / "run"), str(tmp_path / "new")])
    assert ended.value.code == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "learning_rate" in line)
    assert line.split() == ["learning_rate", "0.001", "(config)", "0.003", "(--learning_rate)"]
    assert main(["diff", str(folder / "run"), str(tmp_path)]) == 2
