"""Saved models: complete in one directory, the same answers through every door, bounded memory."""

from __future__ import annotations

import json
import logging
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from palm.controller.controller import Controller


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("trained"))
    Controller(tiny.config(folder, num_epochs=25, learning_rate=3e-3), argv=[]).train()
    return folder


def model_of(folder: Path, task: str) -> Path:
    return folder / "out" / task / "infer_model"


def predicting(folder: Path, **settings: Any) -> Controller:
    return Controller(tiny.config(folder, **settings), for_train=False, argv=[])


def test_cls_and_match_write_a_json_object_a_line(trained: Path) -> None:
    returned = predicting(trained).pred("cls")
    lines = (trained / "out" / "cls" / "predictions.json").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert list(returned) == records
    assert [record["index"] for record in records] == list(range(40))
    assert all(set(record) == {"index", "label", "logits", "probs"} for record in records)
    assert all(sum(record["probs"]) == pytest.approx(1, abs=1e-5) for record in records)
    assert all(record["probs"][record["label"]] == max(record["probs"]) for record in records)
    assert len(predicting(trained).pred("match")) == 40


def test_a_trained_model_answers_what_it_was_taught(trained: Path) -> None:
    answers = predicting(trained).pred("mrc")
    assert palm.metrics.squad_scores(answers, trained / "mrc.json")["exact_match"] > 80
    labels = [
        line.split("\t")[0] for line in (trained / "match.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    right = [
        str(record["label"]) == label
        for record, label in zip(predicting(trained).pred("match"), labels, strict=True)
    ]
    assert sum(right) > 36


def test_mrc_writes_palms_dictionaries(trained: Path) -> None:
    answers = predicting(trained).pred("mrc")
    folder = trained / "out" / "mrc"
    assert json.loads((folder / "predictions.json").read_text(encoding="utf-8")) == dict(answers)
    best = json.loads((folder / "nbest_predictions.json").read_text(encoding="utf-8"))
    assert list(best) == [f"q{k}" for k in range(40)]
    for key, candidates in best.items():
        assert candidates[0]["text"] == answers[key]
        assert len(candidates) <= 5
        assert sum(candidate["probability"] for candidate in candidates) == pytest.approx(1)


def test_the_directory_alone_is_enough(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(model_of(trained, "cls"), tmp_path / "moved")
    shutil.copytree(model_of(trained, "mrc"), tmp_path / "reader")
    expected = [record["label"] for record in predicting(trained).pred("cls")]
    (trained / "vocab.txt").rename(trained / "gone.txt")
    try:
        texts = [
            line.split("\t")[1] for line in (trained / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]
        ]
        assert [record["label"] for record in palm.load_model(tmp_path / "moved").predict(texts)] == expected
        answer = palm.load_model(tmp_path / "reader").predict(
            [("what colour is the door", "anna has a new red door .")]
        )
        assert answer[0]["text"] == "red"
    finally:
        (trained / "gone.txt").rename(trained / "vocab.txt")


def test_texts_of_any_number_and_length_get_the_answers_they_get_alone(trained: Path) -> None:
    model = palm.load_model(model_of(trained, "match"))
    pairs = [
        ("who owns the door", "anna has a red door ."),
        ("who owns the sun", "bert has a boat ."),
        ("who", "a"),
    ]
    together = model.predict(pairs)
    for k, pair in enumerate(pairs):
        alone = model.predict([pair])[0]["probs"]
        assert alone == pytest.approx(together[k]["probs"], abs=1e-6)
    assert model.predict([]) == []


def test_a_saved_model_can_be_moved_by_a_copy_of_the_documents_path(trained: Path) -> None:
    # The 0.2.1 document writes `infermodel`, its program `infer_model`.
    documented = trained / "out" / "mrc" / "infermodel"
    assert len(predicting(trained).pred("mrc", inference_model_dir=documented)) == 40


def test_settings_of_the_prediction_can_change_after_training(trained: Path) -> None:
    config = tiny.config(trained)
    config["tasks"]["mrc"] |= {"n_best_size": 2, "max_answer_len": 1}
    Controller(config, for_train=False, argv=[]).pred("mrc")
    best = json.loads((trained / "out" / "mrc" / "nbest_predictions.json").read_text(encoding="utf-8"))
    assert max(len(candidates) for candidates in best.values()) <= 2
    assert all(
        len(candidate["text"].split()) == 1 for candidates in best.values() for candidate in candidates
    )


def test_masked_words_are_predicted(trained: Path) -> None:
    records = predicting(trained).pred("mlm")
    words = [word for record in records for word in record["words"]]
    assert len(records) == 40
    assert len(words) >= 40
    assert set(words[0]) == {"position", "word", "predicted", "prob"}
    assert sum(word["word"] == word["predicted"] for word in words) / len(words) > 0.3


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


def test_a_damaged_model_is_named(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(model_of(trained, "cls"), tmp_path / "m")
    (tmp_path / "m" / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")
    with pytest.raises(palm.StorageError, match=r"m is damaged: vocab\.txt\b"):
        palm.load_model(tmp_path / "m")
    with pytest.raises(palm.StorageError, match=r"manifest\.json"):
        palm.load_model(tmp_path)


def test_the_model_keeps_the_configuration_that_made_it(trained: Path) -> None:
    saved = json.loads((model_of(trained, "cls") / "config.json").read_text(encoding="utf-8"))
    assert saved["run"]["global"]["learning_rate"] == 3e-3
    assert saved["backbone"]["name"] == "bert"
    assert saved["backbone"]["settings"]["hidden_size"] == 32
    assert saved["reader"]["settings"]["vocab_path"] == {"file": "vocab.txt"}


def test_the_resolved_configuration_repeats_the_run(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    first = Controller(tiny.config(folder, "cls", num_epochs=1), argv=["--learning_rate", "2e-3"])
    first.train()
    weights = (model_of(folder, "cls") / "model.safetensors").read_bytes()
    import yaml

    resolved = yaml.safe_load((folder / "out" / "resolved_config.yaml").read_text(encoding="utf-8"))
    resolved["global"]["save_path"] = str(folder / "again")
    Controller(resolved, argv=[]).train()
    assert (folder / "again" / "cls" / "infer_model" / "model.safetensors").read_bytes() == weights


def test_progress_and_place_are_reported(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        predicting(trained).pred("cls")
    assert f"cls: predictions saved at {trained / 'out' / 'cls'}" in caplog.text


def test_load_model_leaves_training_mode(trained: Path) -> None:
    model = palm.load_model(model_of(trained, "cls"))
    with torch.no_grad():
        assert model.predict(["anna has a red door ."]) == model.predict(["anna has a red door ."])
