"""A second run into the same folder, by the same controller or a new one: resumed, replaced or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.callbacks import at_step
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import PalmError, StorageError


def controller(folder: Path, *tasks: str, **settings: Any) -> Controller:
    return tiny.controller(folder, *tasks, **{"overwrite": False, **settings})


def models(folder: Path) -> dict[str, bytes]:
    return {
        path.parent.parent.name: path.read_bytes() for path in folder.glob("*/infer_model/model.safetensors")
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_run_is_refused_or_takes_the_place_of_the_first(folder: Path) -> None:
    controller(folder, "cls", num_epochs=1, save_every_n_steps=5).train()
    first = contents(folder / "out")
    (folder / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=r"out .*\(step_5, step_10, cls/infer_model\)"):
        controller(folder, "cls", num_epochs=1, learning_rate=2e-3).train()
    controller(folder, "cls", num_epochs=1, learning_rate=2e-3, overwrite=True).train()
    assert models(folder / "out") != models(folder / "out.previous")
    assert not (folder / "out" / "step_5").exists()
    assert contents(folder / "out.previous") == {**first, "notes.txt": b"mine"}


@pytest.mark.parametrize("settings", [{"resume": "auto"}, {}, {"resume": "auto", "overwrite": True}])
def test_a_finished_run_returns_its_result_and_stays_as_it_is(
    folder: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    same = {"num_epochs": 1, "save_every_n_steps": 5}
    first = controller(folder, "cls", **same).train()
    before = contents(folder / "out")
    with caplog.at_level("INFO", "palm"):
        again = controller(folder, "cls", **same, **settings).train(callbacks=[_refused])
    (told,) = [record for record in caplog.records if "is finished already" in record.getMessage()]
    remedy = "without resume" if "overwrite" in settings else "set overwrite: true"
    assert (told.levelname, remedy in told.getMessage()) == (
        "WARNING" if "overwrite" in settings else "INFO",
        True,
    )
    assert contents(folder / "out") == before
    assert [path.name for path in folder.glob("out*")] == ["out"]
    assert (again.steps, again.best, again.paths) == (first.steps, first.best, first.paths)
    assert [event.as_line() for event in again.history] == [event.as_line() for event in first.history]


def _refused(event: Any) -> None:
    raise AssertionError(f"a finished run trains: {event}")


@pytest.mark.parametrize(
    ("common", "second", "told"),
    [
        # There is no checkpoint to continue, so `resume: auto` is no way on.
        (
            {"lr_scheduler": "constant", "warmup_proportion": 0},
            {"num_epochs": 2, "resume": "auto"},
            "overwrite: true",
        ),
        ({}, {"overwrite": True, "start_from": "out/cls/infer_model"}, "infer_model is needed"),
        ({"save_path": "."}, {"overwrite": True}, "cls.tsv is needed"),
    ],
    ids=["a longer run", "a start from its model", "a folder with the data"],
)
def test_a_finished_run_is_neither_trained_anew_nor_moved_where_that_takes_something_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch, common: dict[str, Any], second: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(folder)
    controller(folder, "cls", **{"num_epochs": 1, **common}).train()
    before = contents(folder)
    with pytest.raises(StorageError, match=told) as caught:
        controller(folder, "cls", **{"num_epochs": 1, **common, **second}).train()
    assert "resume: auto" not in str(caught.value)
    assert contents(folder) == before


def test_a_folder_that_holds_what_the_run_reads_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller(folder, "cls", num_epochs=1, save_path=str(folder)).train()
    assert [f"also holds {folder / 'cls.tsv'}" in line for line in caplog.messages].count(True) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_fails_before_its_first_step_changes_nothing(folder: Path, first: bool) -> None:
    if first:
        controller(folder, "cls", num_epochs=1).train()
    before = contents(folder)
    (folder / "cls.tsv").write_text("label\ttext_a\nred\n", encoding="utf-8")
    with pytest.raises(PalmError):
        controller(folder, "cls", num_epochs=1, overwrite=True).train()
    assert {**contents(folder), "cls.tsv": before["cls.tsv"]} == before
    assert (folder / "out").exists() == first


def test_a_run_that_fails_in_its_first_step_has_lost_no_model(folder: Path) -> None:
    controller(folder, "cls", num_epochs=1).train()
    before = contents(folder / "out")
    fail = at_step(1, PalmError("no memory"))
    with pytest.raises(PalmError, match="no memory"):
        controller(folder, "cls", num_epochs=1, overwrite=True).train(callbacks=[fail])
    assert contents(folder / "out.previous") == before
    controller(folder, "cls", num_epochs=1, overwrite=True).train()  # nothing came of the failed one
    assert contents(folder / "out.previous") == before


def test_a_changed_setting_is_named_and_the_record_of_the_old_run_stays(folder: Path) -> None:
    controller(folder, "cls", num_epochs=1, save_every_n_steps=5).train()
    before = (folder / "out" / "resolved_config.yaml").read_bytes()
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").replace("red", "blue")
    (folder / "cls.tsv").write_text(lines, encoding="utf-8")
    with raises(StorageError, "learning_rate: 0.001 ", " 0.002 ", "cls.train_file: "):
        controller(folder, "cls", num_epochs=1, learning_rate=2e-3, resume="auto").train()
    assert (folder / "out" / "resolved_config.yaml").read_bytes() == before


def test_a_first_run_that_died_continues_from_its_last_epoch(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", num_epochs=3, save_every_n_steps=None, overwrite=False)
    whole = Controller({**config, "save_path": str(folder / "whole")}, argv=[]).train()
    with pytest.raises(RuntimeError, match="electricity"):
        Controller(config, argv=[]).train([at_step(50, RuntimeError("out of electricity"))])
    (left,) = (folder / "out").glob("step_*")
    resumed = Controller({**config, "resume": "auto"}, argv=[]).train()
    kept = [event.path.name for event in resumed.history if getattr(event, "kind", "") == "checkpoint"]
    assert left.name in kept
    assert len(kept) == 3
    # The checkpoint of an earlier process may have been asked for, so it stays.
    assert {path.name for path in (folder / "out").glob("step_*")} == {left.name, kept[-1]}
    assert resumed.losses == whole.losses


def test_checkpoints_that_were_asked_for_outlive_a_run_resumed_without_the_setting(folder: Path) -> None:
    config = tiny.config(folder, "cls", num_epochs=3, save_every_n_steps=4, overwrite=False)
    with pytest.raises(RuntimeError, match="electricity"):
        Controller(config, argv=[]).train([at_step(14, RuntimeError("out of electricity"))])
    assert {path.name for path in (folder / "out").glob("step_*")} == {"step_4", "step_8", "step_12"}
    Controller({**config, "resume": "auto", "save_every_n_steps": None}, argv=[]).train()
    assert {"step_4", "step_8", "step_12"} < {path.name for path in (folder / "out").glob("step_*")}
