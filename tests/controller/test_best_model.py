"""What people predict with: the best model of a run, with its step; and what is said where there is none."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.callbacks import logged
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import StorageError
from palm.core.io import read_json


def with_dev(folder: Path, **settings: Any) -> dict[str, Any]:
    config = tiny.config(folder, "cls", "match", "mlm", target_tag=[1, 1, 0], num_epochs=1, **settings)
    config["tasks"]["cls"]["dev_file"] = config["tasks"]["cls"]["train_file"]
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run with dev data of one of its two targets, and what it said."""
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    with logged() as lines:
        Controller(with_dev(folder, eval_every_n_steps=3, save_every_n_steps=9), argv=[]).train()
    return folder, lines


def test_a_best_model_knows_its_step_and_a_last_one_is_as_before(run: tuple[Path, list[str]]) -> None:
    out = run[0] / "out"
    trained = palm.load_model(out / "cls" / "best_model").trained
    assert set(trained) == {"step", "scores"}
    assert list(trained["scores"]) == ["accuracy", "macro_f1"]
    assert read_json(out / "cls" / "best_model" / "config.json")["tasks"]["cls"]["training"]["best"] is True
    assert read_json(out / "cls" / "infer_model" / "config.json")["tasks"]["cls"]["training"]["best"] is False
    assert set(palm.load_model(out / "cls" / "infer_model").trained) == set()


def test_predictions_and_scores_are_of_the_best_model_which_is_named(
    run: tuple[Path, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = run
    controller = Controller(with_dev(folder), for_train=False, argv=[])
    best = palm.load_model(folder / "out" / "cls" / "best_model")
    with caplog.at_level(logging.INFO, "palm"):
        scores = controller.evaluate("cls")
        controller.pred("cls")
        controller.pred("match")
        controller.pred("cls", folder / "out" / "cls" / "infer_model")
    assert scores["accuracy"] == best.trained["scores"]["accuracy"]
    loaded = [line for line in caplog.messages if "inference model loaded from" in line]
    assert loaded[0] == f"cls: inference model loaded from {folder / 'out' / 'cls' / 'best_model'}"
    assert [line.rpartition("/")[2] for line in loaded[1:]] == ["best_model", "infer_model", "infer_model"]


def test_a_task_and_a_run_of_one_task_stand_for_their_best_model(
    run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    out = run[0] / "out"
    assert palm.load_model(out / "cls").trained["step"] > 0
    assert palm.load_model(out / "match").trained == {}
    shutil.copytree(out / "cls", tmp_path / "run" / "cls")
    assert palm.load_model(tmp_path / "run").task == "cls"


def test_a_model_that_is_missing_says_why(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = run
    out = folder / "out"
    words = {
        folder / "nowhere": str(folder / "nowhere"),
        Path("google-bert/bert-base-uncased"): "`palm download google-bert/bert-base-uncased`",
    }
    for path, expected in words.items():
        with raises(StorageError, expected):
            palm.load_model(path)
    controller = Controller(with_dev(folder), for_train=False, argv=[])
    with pytest.raises(StorageError, match=r"\bmlm\b.*auxiliary"):
        controller.pred("mlm")
    elsewhere = Controller(with_dev(folder, save_path=str(tmp_path)), for_train=False, argv=[])
    with pytest.raises(StorageError, match=r"\bcls\b.*train first.*save_path"):
        elsewhere.pred("cls")
    shutil.copytree(out / "step_9", tmp_path / "step_9")
    with pytest.raises(StorageError, match=r"\bcls\b.*--resume"):
        elsewhere.pred("cls")


def test_the_model_of_another_task_is_reported(
    run: tuple[Path, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = run
    controller = Controller(with_dev(folder), for_train=False, argv=[])
    with pytest.raises(StorageError, match=r"infer_model.*'match'.*'cls'"):
        controller.pred("cls", folder / "out" / "match" / "infer_model")
    config = with_dev(folder)
    config["tasks"]["other"] = config["tasks"].pop("cls")
    config |= {"task_instance": ["other", "match", "mlm"]}
    Controller(config, for_train=False, argv=[]).pred("other", folder / "out" / "cls" / "infer_model")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("other: ")
    assert str(folder / "out" / "cls" / "infer_model") in warning
    assert "'cls'" in warning


def test_equal_encoders_of_an_evaluation_are_one_file(folder: Path) -> None:
    settings = {"eval_every_n_steps": 5, "save_every_n_steps": 5, "max_steps": 5, "with_dev": True}
    config = tiny.config(folder, "cls", "match", **settings)
    palm.Controller(config, argv=[]).train()
    # The model of match is that of its last step, which is an earlier one.
    places = ["cls/best_model", "cls/infer_model", "match/best_model", "model", "step_5"]
    best, *others = (folder / "out" / place / "model.safetensors" for place in places)
    assert [other.samefile(best) for other in others] == [True] * 4
