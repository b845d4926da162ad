"""A stopped prediction continues where it was, and its files are those of one that was not stopped."""

from __future__ import annotations

import logging
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from palm.controller.controller import Controller
from palm.core.errors import DataError, StorageError
from palm.predict.inference import InferenceModel
from palm.predict.log import PREDICTION_LOG, PredictionLog
from palm.reader.tables.files import data_checksum
from palm.train import task_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    Controller(tiny.config(folder, "cls", "mrc", "mlm", num_epochs=0.5), argv=[]).train()
    return folder


def stop_after(model: InferenceModel, steps: int, error: type[BaseException]) -> None:
    """Let a model fail at its batch `steps`, counted from 0."""
    well = model.steps

    def failing(*arguments: Any, **settings: Any) -> Any:
        yield from islice(well(*arguments, **settings), steps)
        raise error("stopped")

    model.steps = failing  # type: ignore[method-assign]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.iterdir()) if path.suffix != ".lock")
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize("task", ["cls", "mrc", "mlm"])
def test_a_stopped_prediction_continues_byte_by_byte(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    task: str,
) -> None:
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    data = trained / {"cls": "cls.tsv", "mrc": "mrc.json", "mlm": "mlm.tsv"}[task]
    model = palm.load_model(trained / "out" / task / "infer_model")
    model.predict_file(data, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    assert PREDICTION_LOG not in whole

    stopped = palm.load_model(trained / "out" / task / "infer_model")
    stop_after(stopped, 14, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.predict_file(data, tmp_path / "parts")
    assert list(contents(tmp_path / "parts")) == [PREDICTION_LOG]
    kept = (tmp_path / "parts" / PREDICTION_LOG).read_bytes()
    assert [(r.levelname, r.args) for r in caplog.records] == [("WARNING", (tmp_path / "parts", 32))]

    for cut in (0, 5):  # a whole last line, and one that a dying process left half written
        (tmp_path / "parts" / PREDICTION_LOG).write_bytes(kept[: len(kept) - cut])
        with caplog.at_level(logging.INFO, "palm"):
            model.predict_file(data, tmp_path / "parts", resume=True)
        assert contents(tmp_path / "parts") == whole
    assert (tmp_path / "parts", 24) in [record.args for record in caplog.records]


def test_another_model_or_file_cannot_continue_it(trained: Path, tmp_path: Path) -> None:
    folder = trained / "out" / "cls" / "infer_model"
    model = palm.load_model(folder)
    about = {**model._about(data_checksum(trained / "cls.tsv", "blake2b")), "model": "another"}
    list(PredictionLog(tmp_path, lambda: about, size=1).completed(iter([{}])))
    with pytest.raises(StorageError) as caught:
        model.predict_file(trained / "cls.tsv", tmp_path, resume=True)
    assert " model;" in str(caught.value)
    model.batch_size = 3
    with pytest.raises(StorageError) as caught:
        model.predict_file(trained / "mlm.tsv", tmp_path, resume=True)
    assert "model, input file, batch size" in str(caught.value)


@pytest.mark.parametrize("header", [b"", b'{"model": "ab'])
def test_a_prediction_that_was_killed_before_its_first_record_begins_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
) -> None:
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    (tmp_path / PREDICTION_LOG).write_bytes(header)
    assert len(model.predict_file(trained / "cls.tsv", tmp_path, resume=True)) == 40
    assert PREDICTION_LOG not in contents(tmp_path)


def test_without_a_stopped_prediction_it_begins_at_the_beginning(trained: Path, tmp_path: Path) -> None:
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    assert len(model.predict_file(trained / "cls.tsv", tmp_path, resume=True)) == 40


def test_data_that_must_be_mended_leave_nothing_to_continue(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    stop_after(model, 8, DataError)
    with pytest.raises(DataError):
        model.predict_file(trained / "cls.tsv", tmp_path)
    assert contents(tmp_path) == {}


def test_a_second_prediction_into_one_folder_is_refused_while_the_first_lasts(
    trained: Path, tmp_path: Path
) -> None:
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    with PredictionLog(tmp_path / "new", dict, size=8):
        with pytest.raises(StorageError) as caught:
            model.predict_file(trained / "cls.tsv", tmp_path / "new")
        assert str(tmp_path / "new") in str(caught.value)
        assert list(contents(tmp_path / "new")) == []
    model.predict_file(trained / "cls.tsv", tmp_path / "new")
    assert list(contents(tmp_path / "new")) == ["predictions.json"]


def test_a_file_that_was_replaced_meanwhile_cannot_continue_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest is that of the file that is read, not of one that is put in its place later."""
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    data = tmp_path / "data.tsv"
    shutil.copy(trained / "cls.tsv", data)
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    well = model.steps

    def replaced(*arguments: Any, **settings: Any) -> Any:
        steps = well(*arguments, **settings)
        yield next(steps)
        (tmp_path / "new").write_text("label\ttext_a\n" + "1\tthe dog\n" * 40, encoding="utf-8")
        (tmp_path / "new").replace(data)
        yield from islice(steps, 13)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(model, "steps", replaced)
        with pytest.raises(KeyboardInterrupt):
            model.predict_file(data, tmp_path / "out")
    with pytest.raises(StorageError, match="differs in input file"):
        model.predict_file(data, tmp_path / "out", resume=True)


def test_the_log_of_another_prediction_stays_or_is_said_to_be_replaced(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    folder = trained / "out" / "cls" / "infer_model"
    stopped = palm.load_model(folder)
    stop_after(stopped, 14, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.predict_file(trained / "cls.tsv", tmp_path / "one.jsonl")
    log = (tmp_path / PREDICTION_LOG).read_bytes()
    model = palm.load_model(folder)
    few = tmp_path / "few.tsv"
    few.write_text("label\ttext_a\n1\tthe dog\n", encoding="utf-8")
    model.predict_file(few, tmp_path / "few.jsonl")
    assert (tmp_path / PREDICTION_LOG).read_bytes() == log
    caplog.clear()
    model.predict_file(trained / "mlm.tsv", tmp_path / "other.jsonl")
    assert [record.args for record in caplog.records if "stopped prediction" in record.msg] == [(tmp_path,)]
    assert not (tmp_path / PREDICTION_LOG).exists()
