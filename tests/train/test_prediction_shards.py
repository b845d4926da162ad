"""The parts of a prediction that several jobs make, put together, are the prediction of one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.messages import raises
from palm.core.errors import StorageError
from palm.predict.inference import InferenceModel, JointModel
from palm.train import task_model

DATA = {"cls": "cls.tsv", "mrc": "mrc.json", "mlm": "mlm.tsv"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"), rows=43)
    tiny.controller(folder, *DATA, num_epochs=0.5).train()
    return folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """43 rows are 11 chunks, the last one with 3 rows."""
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 4)


def model_of(trained: Path, task: str) -> InferenceModel:
    return palm.load_model(trained / "out" / task / "infer_model")


def files_in(folder: Path) -> dict[str, bytes]:
    """The contents of the files in a folder, without locks, which stay."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


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
    assert files_in(tmp_path / "parts") == files_in(tmp_path / "whole")


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
    assert files_in(tmp_path / "parts") == files_in(tmp_path / "whole")


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
    assert len(files_in(tmp_path)) == 2  # nothing is lost
