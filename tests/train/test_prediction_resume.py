"""A stopped prediction continues where it was, and its files are those of one that was not stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.messages import raises
from palm.core.errors import StorageError
from palm.predict.inference import JointModel
from palm.predict.log import PREDICTION_LOG, PredictionLog
from palm.reader.tables.files import data_checksum
from palm.train import task_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    tiny.controller(folder, "cls", "mrc", "mlm", num_epochs=0.5).train()
    return folder


@contextmanager
def stopped_after(batches: int) -> Iterator[None]:
    """Let predictions be interrupted after so many batches."""
    well, computed = JointModel.outputs, count()

    def failing(self: JointModel, given: Any) -> Any:
        if given and next(computed) == batches:
            raise KeyboardInterrupt
        return well(self, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JointModel, "outputs", failing)
        yield


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

    with stopped_after(9), pytest.raises(KeyboardInterrupt):
        model.predict_file(data, tmp_path / "parts")
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
    PredictionLog(tmp_path, lambda: about, size=1).append([{}])
    with raises(StorageError, " model;"):
        model.predict_file(trained / "cls.tsv", tmp_path, resume=True)
    model.batch_size = 3
    with raises(StorageError, "model, input file, batch size"):
        model.predict_file(trained / "mlm.tsv", tmp_path, resume=True)


@pytest.mark.parametrize("header", [b"", b'{"model": "ab'])
def test_a_prediction_that_was_killed_before_its_first_record_begins_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
) -> None:
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    (tmp_path / PREDICTION_LOG).write_bytes(header)
    assert len(model.predict_file(trained / "cls.tsv", tmp_path, resume=True)) == 40
    assert PREDICTION_LOG not in contents(tmp_path)


def test_a_second_prediction_into_one_folder_is_refused_while_the_first_lasts(
    trained: Path, tmp_path: Path
) -> None:
    model = palm.load_model(trained / "out" / "cls" / "infer_model")
    with PredictionLog(tmp_path / "new", dict, size=8):
        with raises(StorageError, str(tmp_path / "new")):
            model.predict_file(trained / "cls.tsv", tmp_path / "new")
        assert list(contents(tmp_path / "new")) == []
    model.predict_file(trained / "cls.tsv", tmp_path / "new")
    assert list(contents(tmp_path / "new")) == ["predictions.json"]
