"""A stopped prediction, and one that several jobs made, has the files of one that was made in one go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palm
from helpers import tiny
from helpers.messages import raises
from palm.core.errors import StorageError
from palm.predict.inference import InferenceModel, JointModel
from palm.predict.log import PREDICTION_LOG, Output, PredictionLog
from palm.reader.tables.files import data_checksum
from palm.train import task_model

DATA = {"cls": "cls.tsv", "mrc": "mrc.json", "mlm": "mlm.tsv"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"), rows=43)
    tiny.controller(folder, *DATA, num_epochs=0.5).train()
    return folder


def model_of(trained: Path, task: str) -> InferenceModel:
    return palm.load_model(trained / "out" / task / "infer_model")


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


@pytest.mark.parametrize("task", DATA)
def test_a_stopped_prediction_continues_byte_by_byte(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    task: str,
) -> None:
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 8)
    model, data = model_of(trained, task), trained / DATA[task]
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
    model = model_of(trained, "cls")
    about = {**model._about(data_checksum(trained / "cls.tsv", "blake2b")), "model": "another"}
    PredictionLog(Output(Path(), tmp_path, "", lambda: about, list), size=1).append([{}])
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
    model = model_of(trained, "cls")
    (tmp_path / PREDICTION_LOG).write_bytes(header)
    assert len(model.predict_file(trained / "cls.tsv", tmp_path, resume=True)) == 43
    assert PREDICTION_LOG not in contents(tmp_path)


def test_a_second_prediction_into_one_folder_is_refused_while_the_first_lasts(
    trained: Path, tmp_path: Path
) -> None:
    model = model_of(trained, "cls")
    with PredictionLog(Output(Path(), tmp_path / "new", "", dict, list), size=8):
        with raises(StorageError, str(tmp_path / "new")):
            model.predict_file(trained / "cls.tsv", tmp_path / "new")
        assert list(contents(tmp_path / "new")) == []
    model.predict_file(trained / "cls.tsv", tmp_path / "new")
    assert list(contents(tmp_path / "new")) == ["predictions.json"]


# Several jobs


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """43 rows are 11 chunks, the last one with 3 rows."""
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("task", "name"), [("cls", "out.csv"), ("cls", ""), ("mrc", "")])
@pytest.mark.parametrize("count", [3, 16])
def test_merged_shards_are_the_whole_byte_by_byte(
    trained: Path, tmp_path: Path, task: str, name: str, count: int
) -> None:
    model, data = model_of(trained, task), trained / DATA[task]
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    model.predict_file(data, tmp_path / "whole" / name)
    sizes = []
    for number in reversed(range(1, count + 1)):  # jobs end in any order
        sizes.append(len(model.predict_file(data, tmp_path / "parts" / name, shard=f"{number}/{count}")))
    assert sizes[::-1] == [sum(min(4, 43 - 4 * k) for k in range(j, 11, count)) for j in range(count)]
    merged = model.predict_file(data, tmp_path / "parts" / name, shard=f"merge/{count}")
    assert len(merged) == 43
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_chunks")
def test_a_stopped_shard_continues_and_a_finished_one_is_not_predicted_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = model_of(trained, "cls"), trained / "cls.tsv"
    model.predict_file(data, tmp_path / "whole")
    well = JointModel.outputs
    rows: list[int] = []

    def outputs(self: JointModel, batches: Any) -> Any:
        if batches and is_stopped and sum(rows) == 8:  # after two of the chunks 0, 2, 4, 6, 8 and 10
            raise KeyboardInterrupt
        rows.extend(len(batch["token_ids"]) for batch in batches.values())
        return well(self, batches)

    monkeypatch.setattr(JointModel, "outputs", outputs)
    is_stopped = True
    with pytest.raises(KeyboardInterrupt):
        model.predict_file(data, tmp_path / "parts", shard="1/2")
    is_stopped = False
    model.predict_file(data, tmp_path / "parts", shard="2/2")
    with raises(StorageError, "not finished: 1;"):
        model.predict_file(data, tmp_path / "parts", shard="merge/2")

    rows.clear()
    assert len(model.predict_file(data, tmp_path / "parts", resume=True, shard="1/2")) == 23
    assert sum(rows) == 23 - 8  # two chunks were done
    assert len(model.predict_file(data, tmp_path / "parts", resume=True, shard="1/2")) == 23
    assert sum(rows) == 23 - 8 + 3  # only the last, incomplete chunk
    model.predict_file(data, tmp_path / "parts", shard="merge/2")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_chunks")
def test_shards_of_another_model_or_file_are_refused(trained: Path, tmp_path: Path) -> None:
    model = model_of(trained, "cls")
    model.predict_file(trained / "cls.tsv", tmp_path, shard="1/2")
    other = model_of(trained, "cls")
    other.batch_size = 3
    other.predict_file(trained / "cls.tsv", tmp_path, shard="2/2")
    with raises(StorageError, "2-of-2.resume: this shard differs in batch size"):
        model.predict_file(trained / "cls.tsv", tmp_path, shard="merge/2")
    with pytest.raises(StorageError, match="differs in input file"):
        model.predict_file(trained / "mlm.tsv", tmp_path, resume=True, shard="1/2")
    assert len(contents(tmp_path)) == 2  # nothing is lost


def test_numbers_of_numpy_reach_a_writer_as_numbers(tmp_path: Path) -> None:
    out = Output(tmp_path / "data", tmp_path, "", lambda: {"precision": "fp32"}, list)
    with PredictionLog(out, 2) as log:
        log.append([{"score": np.float32(0.5), "count": np.int64(3), "probs": np.ones(2), "at": tmp_path}])
        found = log.finish()
    assert found == [{"score": 0.5, "count": 3, "probs": [1.0, 1.0], "at": str(tmp_path)}]
