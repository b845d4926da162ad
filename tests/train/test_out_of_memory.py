"""A GPU whose memory is used up: what takes it, and what takes less."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from palm.check import check
from palm.cli import main


def written(folder: Path, head: str, *others: str, **settings: Any) -> Path:
    tiny.write_files(folder)
    given = tiny.config(folder, "cls", *others, with_dev=True, **{"batch_size": 16, **settings})
    given["tasks"]["cls"] |= {"paradigm": f"helpers.hungry.{head}", "n_classes": 4}
    file = folder / "config.yaml"
    file.write_text(json.dumps(given), encoding="utf-8")
    return file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, "Hungry")


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """The error of a command, on one line."""
    assert main(words) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.rpartition("error: ")[2].split())


def test_a_step_that_does_not_fit_is_described_with_what_takes_less(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last = refused(capfd, "train", str(config))
    facts = ["'cls' at its step 1", "16 rows of up to", "Tried to allocate 2.00 GiB"]
    settings = ["batch_size", "gradient_accumulation_steps", "activation_checkpointing"]
    assert [word for word in [*facts, *settings] if word not in last] == []


def test_check_reports_batches_that_do_not_fit(config: Path) -> None:
    [problem] = [each for each in check(config).problems if each.code == "memory"]
    assert "Tried to allocate 2.00 GiB" in problem.message
    assert "gradient_accumulation_steps" in problem.message


def test_predictions_that_do_not_fit_have_a_remedy_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = str(written(tmp_path, "HungryLater", max_steps=2))
    later = ["--cls.dev_file", "null"]
    assert main(["train", config, *later]) == 0
    assert main(["evaluate", config, "--pred_batch_size", "2"]) == 0
    evaluated = refused(capfd, "evaluate", config)
    predicted = refused(capfd, "predict", config, *later)
    trained = refused(capfd, "train", config)
    for last in (evaluated, predicted, trained):
        assert "Tried to allocate 2.00 GiB" in last
        assert "pred_batch_size" in last
        assert "gradient_accumulation_steps" not in last


@pytest.mark.usefixtures("loaded_runs")
@pytest.mark.parametrize(
    "words", [["compare", "--seeds", "2"], ["sweep", "--grid", "learning_rate=1e-3,1e-4"]], ids=" ".join
)
def test_runs_of_many_that_do_not_fit_are_described_as_one_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    last = refused(capfd, words[0], str(written(tmp_path, "Hungry", "match")), *words[1:])
    assert [word for word in ("(global step ", "16 rows of up to") if word not in last] == []
