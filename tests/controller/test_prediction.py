"""Saved models: complete in one directory, the same answers through every door, bounded memory."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from palm.controller.controller import Controller
from palm.core.errors import StorageError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("trained"))
    quick = {"num_hidden_layers": 1, "pooling": "mean", "tasks_per_step": "all"}
    tiny.controller(folder, num_epochs=20, learning_rate=3e-3, **quick).train()
    return folder


def model_of(folder: Path, task: str) -> Path:
    return folder / "out" / task / "infer_model"


def predicting(folder: Path, **settings: Any) -> Controller:
    return tiny.controller(folder, **settings, for_train=False)


def test_a_trained_model_answers_what_it_was_taught(trained: Path) -> None:
    answers = predicting(trained).pred("mrc")
    assert palm.metrics.squad_scores(answers, trained / "mrc.json")["exact_match"] > 80
    labels = [line.split("\t")[0] for line in (trained / "match.tsv").read_text("utf-8").splitlines()[1:]]
    right = [
        str(record["label"]) == label
        for record, label in zip(predicting(trained).pred("match"), labels, strict=True)
    ]
    assert sum(right) > 36


def test_the_directory_alone_is_enough(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(model_of(trained, "cls"), tmp_path / "moved")
    shutil.copytree(model_of(trained, "mrc"), tmp_path / "reader")
    expected = [record["label"] for record in predicting(trained).pred("cls")]
    (trained / "vocab.txt").rename(trained / "gone.txt")
    try:
        texts = [line.split("\t")[1] for line in (trained / "cls.tsv").read_text("utf-8").splitlines()[1:]]
        assert [record["label"] for record in palm.load_model(tmp_path / "moved").predict(texts)] == expected
        answer = palm.load_model(tmp_path / "reader").predict(
            [("what colour is the door", "anna has a new red door .")]
        )
        assert answer[0]["text"] == "red"
    finally:
        (trained / "gone.txt").rename(trained / "vocab.txt")


def test_a_saved_model_can_be_moved_by_a_copy_of_the_documents_path(trained: Path) -> None:
    # The 0.2.1 document writes `infermodel`, its program `infer_model`.
    documented = trained / "out" / "mrc" / "infermodel"
    assert len(predicting(trained).pred("mrc", inference_model_dir=documented)) == 40


def test_predicting_takes_memory_for_a_chunk_not_for_the_file(trained: Path, tmp_path: Path) -> None:
    model = palm.load_model(model_of(trained, "cls"))
    model.batch_size = 256

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.tsv"
        path.write_text("text_a\n" + "anna has a red door .\n" * rows, encoding="utf-8")
        tracemalloc.start()
        assert len(model.predict_file(path, tmp_path / str(rows))) == rows
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    small, large = peak(2_000), peak(8_000)
    assert large < 1.5 * small


def test_the_resolved_configuration_repeats_the_run(folder: Path) -> None:
    first = Controller(tiny.config(folder, "cls", num_epochs=1), argv=["--learning_rate", "2e-3"])
    first.train()
    weights = (model_of(folder, "cls") / "model.safetensors").read_bytes()
    import yaml

    resolved = yaml.safe_load((folder / "out" / "resolved_config.yaml").read_text(encoding="utf-8"))
    resolved["global"]["save_path"] = str(folder / "again")
    Controller(resolved, argv=[]).train()
    assert (folder / "again" / "cls" / "infer_model" / "model.safetensors").read_bytes() == weights


def test_predictions_are_not_written_into_a_model(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_of(trained, "cls"), tmp_path / "model"))
    before = sorted(folder.iterdir())
    for output in (folder, folder / "answers.csv"):
        with pytest.raises(StorageError, match=r"model is a saved model"):
            palm.load_model(folder).predict_file(trained / "cls.tsv", output)
    assert sorted(folder.iterdir()) == before
