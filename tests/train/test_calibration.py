"""Temperatures, calibration errors and abstention: against definitions, and in whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palm
from helpers import tiny
from palm.core.errors import ConfigError
from palm.metrics import calibration_error
from palm.metrics.classification import BINS
from palm.paradigm import Classify, Match, MultiLabel, SequenceLabel
from palm.paradigm.calibration import best_temperature, lowest_threshold

RNG = np.random.default_rng


def sampled(rows: int, seed: int, temperature: float) -> tuple[Any, Any]:
    """Logits that are too large by a temperature, and labels with the right probabilities."""
    rng = RNG(seed)
    logits = 2 * rng.standard_normal((rows, 4))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (rng.random((rows, 1)) > probs.cumsum(1)).sum(1)
    return (temperature * logits).astype(np.float32), labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
def test_a_known_temperature_is_found(temperature: float) -> None:
    logits, labels = sampled(50_000, 0, temperature)
    assert best_temperature(logits, labels) == pytest.approx(temperature, rel=0.02)


def test_the_calibration_error_is_that_of_its_definition() -> None:
    rng = RNG(1)
    for _ in range(50):
        probs = rng.integers(0, 31, 40) / 30  # some on the borders of ranges
        right = rng.random(40) < probs
        expected = 0.0
        for k in range(BINS):
            here = (probs > k / BINS) & (probs <= (k + 1) / BINS) | ((k == 0) & (probs == 0))
            if here.any():
                expected += here.mean() * abs(probs[here].mean() - right[here].mean())
        assert calibration_error(probs.tolist(), right.tolist()) == pytest.approx(expected)


def test_the_threshold_is_the_lowest_with_the_precision() -> None:
    rng = RNG(2)
    for _ in range(50):
        confidence = rng.integers(0, 10, 30) / 10
        right = rng.random(30) < confidence
        found = lowest_threshold(confidence, right, 0.8)
        fits = [t for t in sorted({*confidence}) if right[confidence >= t].mean() >= 0.8]
        assert found == (fits[0] if fits else 2.0)


def tuned(head: Any, logits: Any, truths: Any, field: str) -> Any:
    return list(head.tune(zip(decoded(head, logits), ({field: truth} for truth in truths), strict=True)))


def decoded(head: Any, logits: Any) -> Any:
    outputs = torch.from_numpy(logits)
    return head.decode({"logits": outputs, "probs": head.probabilities(outputs)})


def test_an_overconfident_model_gets_a_third_of_its_error_on_other_data_and_the_same_labels() -> None:
    head = Classify(4, 8, calibrate=True, abstain_below=0.9)
    logits, labels = sampled(4000, 3, 3.0)
    tuned(head, logits, labels.tolist(), "label")
    logits, labels = sampled(4000, 4, 3.0)
    records = decoded(head, logits)
    metric = palm.metrics.METRICS["ece"]()
    for record, label in zip(records, labels.tolist(), strict=True):
        metric.update(record, {"label": label})
    scores = metric.compute()
    assert scores["ece"] < scores["ece_before"] / 3
    assert [record["label"] for record in records] == logits.argmax(1).tolist()
    kept = [(r["label"] == y) for r, y in zip(records, labels.tolist(), strict=True) if not r["abstains"]]
    assert np.mean(kept) == pytest.approx(0.9, abs=0.02)
    assert 0.2 < len(kept) / len(records) < 0.9


def test_a_run_on_few_rows_with_wrong_labels_is_made_to_mean_its_probabilities(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    rng = RNG(0)
    words = tiny.COLOURS + tiny.THINGS + tiny.NAMES
    for name, rows in (("train", 64), ("dev", 300), ("test", 600)):
        texts = [rng.choice(words, 6).tolist() for _ in range(rows)]
        labels = [bool({*text} & {"red", "anna", "door"}) ^ (rng.random() < 0.25) for text in texts]
        lines = [f"{label:d}\t{' '.join(text)}" for label, text in zip(labels, texts, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["label\ttext_a", *lines, ""]), encoding="utf-8")
    files = {f"cls.{name}_file": str(folder / f"{name}.tsv") for name in ("train", "dev")}
    task = {"cls.calibrate": True, "cls.n_classes": 2, **files}
    length = {"num_epochs": 16, "eval_every_epoch": False, "eval_every_n_steps": 128}
    palm.Controller(tiny.config(folder, "cls", learning_rate=3e-3, **length, **task), argv=[]).train()
    model = palm.load_model(folder / "out" / "cls" / "infer_model")
    scores = model.evaluate(folder / "test.tsv", ["accuracy", "ece"])
    assert scores["ece_before"] > 0.2
    assert scores["ece"] < scores["ece_before"] / 3
    model.head.temperature.fill_(1.0)
    assert model.evaluate(folder / "test.tsv", ["accuracy"])["accuracy"] == scores["accuracy"]


def test_each_label_of_several_has_a_temperature_of_its_own() -> None:
    rng = RNG(5)
    plain = 2 * rng.standard_normal((25_000, 2))
    true = rng.random(plain.shape) < 1 / (1 + np.exp(-plain))
    logits = (plain * [2.0, 0.5]).astype(np.float32)
    head = MultiLabel(2, 8, calibrate=True)
    pairs = tuned(head, logits, [np.flatnonzero(row).tolist() for row in true], "label_set")
    assert head.temperature.tolist() == pytest.approx([2.0, 0.5], rel=0.02)
    metric = palm.metrics.METRICS["label_ece"]()
    for record, truth in pairs[:10_000]:
        metric.update(record, truth)
    assert metric.compute()["label_ece"] < metric.compute()["label_ece_before"] / 3


def test_words_are_calibrated_by_one_temperature() -> None:
    logits, labels = sampled(32_000, 6, 2.5)
    texts = [slice(k, k + 4) for k in range(0, len(labels), 4)]  # of four words each
    head = SequenceLabel(4, 8, calibrate=True)
    outputs = {
        "logits": torch.from_numpy(logits).reshape(-1, 4, 4),
        "word_mask": torch.ones(len(texts), 4, dtype=torch.bool),
    }
    records = [
        one | more for one, more in zip(head.decode(outputs), head.eval_outputs(outputs, {}), strict=True)
    ]
    truths = [{"label_ids": labels[text].tolist(), "labels": labels[text].tolist()} for text in texts]
    metric = palm.metrics.METRICS["word_ece"]()
    for record, truth in head.tune(zip(records, truths, strict=True)):
        metric.update(record, truth)
    assert head.temperature.item() == pytest.approx(2.5, rel=0.02)
    assert metric.compute()["word_ece"] < metric.compute()["word_ece_before"] / 3
    probs = [prob for record in head.decode(outputs) for prob in record["probs"]]
    expected = torch.from_numpy(logits / head.temperature.item()).softmax(-1).amax(-1)
    assert probs == pytest.approx(expected.tolist(), abs=1e-6)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"abstain_below: 1\.5"):
        Classify(3, 8, abstain_below=1.5)
    with pytest.raises(ConfigError, match="pairwise"):
        Match(learning_strategy="pairwise", calibrate=True)
    with pytest.raises(ConfigError, match="use_crf"):
        SequenceLabel(3, 8, use_crf=True, calibrate=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    rows = [f"{(int(line[0]) + (k % 4 == 0)) % 4}{line[1:]}" for k, line in enumerate(lines[1:])]
    (folder / "dev.tsv").write_text("\n".join([lines[0], *rows]) + "\n", encoding="utf-8")
    settings = {"cls.dev_file": str(folder / "dev.tsv"), "cls.calibrate": True, "cls.abstain_below": 0.6}
    config = tiny.config(folder, "cls", num_epochs=12, learning_rate=3e-3, **settings)
    texts = [line.split("\t")[1].split() for line in rows]
    kinds = [["O" if word in (".", "a", "has") else "B-x" for word in text] for text in texts]
    tagged = ["label\ttext_a", *("\t".join(map(" ".join, pair)) for pair in zip(kinds, texts, strict=True))]
    (folder / "words.tsv").write_text("\n".join(tagged) + "\n", encoding="utf-8")
    config["task_instance"].append("words")
    config["tasks"]["words"] = {
        "train_file": str(folder / "words.tsv"),
        "dev_file": str(folder / "words.tsv"),
        "reader": "seq_label",
        "paradigm": "seq_label",
        "label_map": {"O": 0, "B-x": 1},
        "calibrate": True,
    }
    result = palm.Controller(config, argv=[]).train()
    scores = result.best["cls"].scores
    assert scores["ece"] < scores["ece_before"]
    scores = result.best["words"].scores
    assert scores["word_ece"] < scores["word_ece_before"]
    return folder


@pytest.mark.parametrize(
    ("task", "dev", "fields"), [("cls", "dev.tsv", {"abstains", "probs"}), ("words", "words.tsv", {"probs"})]
)
def test_a_run_calibrates_its_models_and_keeps_that(
    trained: Path, task: str, dev: str, fields: set[str]
) -> None:
    model = palm.load_model(trained / "out" / task / "best_model")
    assert model.head.temperature.item() != 1
    scores = model.evaluate(trained / dev)
    assert model.trained["scores"] == pytest.approx(scores, abs=1e-4)
    assert model.predict(["anna has a red boat ."])[0].keys() >= fields


def test_a_table_has_the_probability_of_each_word(trained: Path) -> None:
    model = palm.load_model(trained / "out" / "words" / "best_model")
    records = model.predict_file(trained / "words.tsv", trained / "records")
    table = model.predict_file(trained / "words.tsv", trained / "words.jsonl")
    assert [row["probability"] for row in table] == [record["probs"] for record in records]


def test_transformers_gives_calibrated_probabilities(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    place = trained / "out" / "cls" / "best_model"
    palm.export.to_hugging_face(place, tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    probs = theirs(**tokenizer("red boat", return_tensors="pt")).logits.softmax(-1)[0].tolist()
    (record,) = palm.load_model(place, precision="fp32").predict(["red boat"])
    assert record["probs"] == pytest.approx(probs, abs=1e-5)
