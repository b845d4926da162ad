"""Several labels per text: from files of all forms to thresholds, saved models, exports and the report."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import palm
from helpers import tiny
from helpers.reader_files import encoded, rng_of_row, write_text
from palm.core.errors import DataError
from palm.paradigm import MultiLabel
from palm.paradigm.multi_label import best_thresholds
from palm.reader import MultiLabelReader

NAMES = {"red": 0, "green": 1, "blue": 2}

FORMS = {
    "list.jsonl": '{"label": ["red", "blue"], "text_a": "a"}\n{"label": [], "text_a": "b"}\n',
    "json.tsv": 'label\ttext_a\n["red", "blue"]\ta\n[]\tb\n',
    "cell.tsv": "label\ttext_a\nblue, red\ta\n[]\tb\n",
    "columns.tsv": "red\tgreen\tblue\ttext_a\n1\t0\ttrue\ta\n0\tFalse\t0\tb\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_labels_gives_the_same_sets(vocab: Path, tmp_path: Path, name: str) -> None:
    path = write_text(tmp_path, name, FORMS[name])
    own: dict[str, Any] = {"label_columns": [*NAMES]} if "columns" in name else {"label_map": NAMES}
    reader = MultiLabelReader(vocab, 16, **own)
    batch = reader.collate(encoded(reader, path, with_targets=True), [1, 0], rng_of_row)
    assert batch["label_set"].tolist() == [[0, 0, 0], [1, 0, 1]]
    assert [truth["label_set"] for truth in map(reader.gold, reader.read_gold(path))] == [[0, 2], []]


def test_unknown_labels_do_not_count(vocab: Path, tmp_path: Path) -> None:
    path = write_text(tmp_path, "some.tsv", "red\tblue\ttext_a\n1\t\ta\n")
    reader = MultiLabelReader(vocab, 16, label_columns=["red", "blue"], missing_labels=True)
    batch = reader.collate(encoded(reader, path, with_targets=True), [0], rng_of_row)
    assert batch["label_set"].tolist() == [[1, -100]]
    head = MultiLabel(2, 4)
    loss = head.loss({"logits": torch.tensor([[0.0, 9.0]])}, batch)
    assert (loss.item(), head.num_terms(batch)) == (pytest.approx(np.log(2)), 1)
    with pytest.raises(DataError, match=r"some\.tsv:2"):
        list(map(reader.gold, reader.read_gold(path)))


@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0, 0.0, 7.0]])
def test_the_loss_and_its_gradient_are_those_of_torch(weights: Any) -> None:
    factors = torch.tensor(weights or [1.0] * 5).double()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits = (3 * torch.randn(6, 5, generator=generator)).double().requires_grad_()
        labels = torch.randint(2, (6, 5), generator=generator).float()
        ours = MultiLabel(5, 4, class_weights=weights).loss({"logits": logits.float()}, {"label_set": labels})
        found = torch.autograd.grad(ours, logits)[0]
        each = F.binary_cross_entropy_with_logits(
            logits, labels.double(), pos_weight=factors, reduction="none"
        )
        theirs = each.sum(1).mean()
        torch.testing.assert_close(ours.double(), theirs, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found, torch.autograd.grad(theirs, logits)[0], atol=1e-6, rtol=0)


def test_thresholds_have_the_highest_f1_of_all_there_are() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        probs = rng.integers(1, 8, (12, 3)).astype(np.float32) / 8
        true = rng.random((12, 3)) < 0.3
        for label, threshold in enumerate(best_thresholds(probs, true)):
            tried = [scored(probs[:, label] >= each, true[:, label]) for each in np.arange(0.01, 1, 0.06)]
            assert scored(probs[:, label] >= threshold, true[:, label]) == pytest.approx(max(tried))
    assert best_thresholds(np.zeros((2, 1), np.float32), np.zeros((2, 1), bool)).tolist() == [0.5]


def test_thresholds_are_scored_on_texts_that_they_were_not_fitted_to() -> None:
    rng = np.random.default_rng(0)
    head = MultiLabel(8, 4)
    logits = rng.normal(size=(40, 8))
    true = rng.random((40, 8)) < 0.2  # by chance
    pairs = [
        ({"probs": (1 / (1 + np.exp(-row))).tolist()}, {"label_set": np.flatnonzero(labels)})
        for row, labels in zip(logits, true, strict=True)
    ]
    given = np.zeros((40, 8), dtype=bool)
    for row, (record, _) in enumerate(head.tune(pairs)):
        given[row, record["labels"]] = True
    same = 1 / (1 + np.exp(-logits)) >= head.thresholds.numpy()
    assert scored(same.ravel(), true.ravel()) > 0.37
    assert scored(given.ravel(), true.ravel()) < 0.33  # 2 · 0.2 / (1 + 0.2), of labels given at random
    assert next(iter(head.tune(pairs[:1])))[0]["labels"] == np.flatnonzero(logits[0] >= 0).tolist()


def scored(given: Any, true: Any) -> float:
    return 2 * (given & true).sum() / max(1, given.sum() + true.sum())


def colour_sets(folder: Path, rows: int, seed: int) -> Path:
    """Texts with some colours, which are their labels."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = [rng.choice([*tiny.COLOURS[:3], *tiny.THINGS[:3]]) for _ in range(3)]
        lines.append(json.dumps({"label": sorted({*words} & NAMES.keys()), "text_a": " ".join(words)}))
    return write_text(folder, f"{seed}.jsonl", "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    train, dev = (str(colour_sets(folder, rows, seed)) for rows, seed in ((96, 1), (40, 2)))
    task = {"reader": "multi_label", "paradigm": "multi_label", "label_map": NAMES}
    settings = tiny.config(folder, "cls", batch_size=8, num_epochs=12, learning_rate=3e-3)
    config = settings | {"tasks": {"cls": {**task, "train_file": train, "dev_file": dev, "pred_file": dev}}}
    controller = palm.Controller(config, argv=[])
    controller.train()
    predictions = controller.pred("cls")
    assert predictions[0].keys() == {"index", "labels", "label_names", "logits", "probs"}
    return folder


def test_yaml_trains_it_and_the_best_model_has_the_scores_of_the_run(trained: Path) -> None:
    model = palm.load_model(trained / "out" / "cls" / "best_model")
    scores = model.evaluate(trained / "2.jsonl")
    assert scores["micro_f1"] > 0.9
    assert model.trained["scores"]["lrap"] == pytest.approx(scores["lrap"], abs=1e-6)
    # Here thresholds are scored on the texts that they are fitted to, and in the run on others.
    assert 0.8 < model.trained["scores"]["micro_f1"] <= scores["micro_f1"]


def test_a_table_has_the_names_of_the_labels_and_the_probability_of_each(trained: Path) -> None:
    model = palm.load_model(trained / "out" / "cls" / "best_model")
    records = model.predict_file(trained / "2.jsonl", trained / "records")
    table = model.predict_file(trained / "2.jsonl", trained / "out.jsonl")
    assert {len(record["labels"]) for record in records} >= {0, 1, 2}
    for record, row in zip(records, table, strict=True):
        assert row.keys() == {"label", "text_a", "labels", "probability"}
        assert row["labels"] == record["label_names"]
        assert row["probability"] == [record["probs"][NAMES[name]] for name in row["labels"]]


def test_a_directory_of_transformers_has_the_same_logits(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    place = trained / "out" / "cls" / "best_model"
    palm.export.to_hugging_face(place, tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    assert theirs.config.problem_type == "multi_label_classification"
    assert theirs.config.id2label == {0: "red", 1: "green", 2: "blue"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    logits = theirs(**tokenizer("red boat", return_tensors="pt")).logits[0].tolist()
    (record,) = palm.load_model(place, precision="fp32").predict(["red boat"])
    assert record["logits"] == pytest.approx(logits, abs=1e-5)
    told = json.loads((tmp_path / "hf" / "palm_export.json").read_text(encoding="utf-8"))
    assert len(told["tasks"]["cls"]["fitted"]["thresholds"]) == 3
