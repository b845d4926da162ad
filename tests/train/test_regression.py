"""Regression: labels that are real numbers, from files to trained models, through both doors."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palm.compat as palm
from helpers import tiny
from helpers.reader_files import encoded, rng_of_row, write_text
from palm.core.errors import DataError
from palm.paradigm import Regression
from palm.reader import ClassifyReader, MatchReader


def test_real_labels_come_as_numbers(vocab: Path, tmp_path: Path) -> None:
    path = write_text(tmp_path, "real.tsv", "label\ttext_a\n3.25\tthe boat\n-1e-2\tred door\n5\ta door\n")
    reader = ClassifyReader(vocab, 16, label_type="real")
    rows = encoded(reader, path, with_targets=True)
    batch = reader.collate(rows, [2, 0, 1], rng_of_row)
    assert "label_ids" not in batch
    assert batch["label_values"].dtype == torch.float32
    assert batch["label_values"].tolist() == [5.0, 3.25, np.float32(-0.01)]
    assert rows.concatenate([rows, rows])["label_values"].values.tolist()[3:5] == [3.25, np.float32(-0.01)]


@pytest.mark.parametrize("text", ["three", "nan", "inf", "-Infinity", "3,2", "1_000", " 3", "0x10"])
def test_a_label_that_is_not_finite_is_an_error_with_its_line(vocab: Path, tmp_path: Path, text: str) -> None:
    path = write_text(tmp_path, "real.tsv", f"label\ttext_a\ttext_b\n1\tthe boat\tred\n{text}\tred\tdoor\n")
    reader = MatchReader(vocab, 16, label_type="real")
    with pytest.raises(DataError, match=rf"real\.tsv:3: .*'{re.escape(text)}'"):
        list(reader.read(path, with_targets=True))


def test_labels_are_standardized_inside_the_head() -> None:
    head = Regression(2, dropout_prob=0.0)
    head.count_labels(np.array([50.0, 60.0, 90.0, 80.0], dtype=np.float32))
    features = {"sentence_embedding": torch.zeros(2, 2)}
    outputs = head(features)
    assert outputs["values"].tolist() == [70, 70]
    deviation = (1000 / 4) ** 0.5
    labels = torch.tensor([70.0, 70 + 3 * deviation])
    assert head.loss(outputs, {"label_values": labels}).item() == pytest.approx(9 / 2 / 2)
    other = Regression(2)
    other.load_state_dict(head.state_dict())
    other.count_labels(np.array([1.0, 2.0], dtype=np.float32))  # loaded, so they do not count
    assert other.eval()(features)["values"].tolist() == [70, 70]
    plain = head.library_parameters()
    x = torch.randn(3, 2)
    expected = head({"sentence_embedding": x})["values"]
    torch.testing.assert_close((x @ plain["out.weight"].T + plain["out.bias"])[:, 0], expected)


def test_the_loss_is_half_the_mean_squared_error() -> None:
    head = Regression(2, dropout_prob=0.0)
    head.out.weight.data = torch.tensor([[1.0, -1.0]])
    head.out.bias.data = torch.tensor([0.5])
    outputs = head({"sentence_embedding": torch.tensor([[3.0, 1.0], [0.0, 2.0]])})
    assert outputs["values"].tolist() == [2.5, -1.5]
    # (2.5 - 2)² = 0.25 and (-1.5 - 1)² = 6.25
    assert head.loss(outputs, {"label_values": torch.tensor([2.0, 1.0])}).item() == 3.25 / 2
    assert head.decode(outputs) == [{"value": 2.5}, {"value": -1.5}]


def regression_config(folder: Path, reader: str, **settings: Any) -> dict[str, Any]:
    """One task whose label is how many of its words are colours, times 1.5."""
    rng = random.Random(1)
    lines = []
    for _ in range(48):
        words = [rng.choice(tiny.COLOURS if rng.random() < 0.5 else tiny.THINGS) for _ in range(4)]
        label = 1.5 * sum(word in tiny.COLOURS for word in words)
        cells = [" ".join(words)] if reader == "cls" else [" ".join(words[:2]), " ".join(words[2:])]
        lines.append("\t".join([str(label), *cells]))
    header = "label\ttext_a" if reader == "cls" else "label\ttext_a\ttext_b"
    write_text(folder, "real.tsv", "\n".join([header, *lines]) + "\n")
    config = tiny.config(folder, "cls", batch_size=8, num_epochs=40, learning_rate=3e-3, **settings)
    path = str(folder / "real.tsv")
    files = {"train_file": path, "pred_file": path}
    return config | {"tasks": {"cls": {**files, "reader": reader, "paradigm": "regression"}}}


def test_two_lines_of_yaml_train_a_regression(tmp_path: Path) -> None:
    config = regression_config(tiny.write_files(tmp_path), "match")
    controller = palm.Controller(config, argv=[])
    controller.train()
    predictions = controller.pred("cls")
    assert predictions[3].keys() == {"index", "value"}
    rows = (tmp_path / "real.tsv").read_text(encoding="utf-8").splitlines()[1:]
    errors = [
        (record["value"] - float(row.split("\t")[0])) ** 2
        for record, row in zip(predictions, rows, strict=True)
    ]
    assert sum(errors) / len(errors) < 0.3  # the labels' variance is 1.5² · 4 · ¼ = 2.25
    model = palm.load_model(tmp_path / "out" / "cls" / "infer_model")
    assert model.reader.settings["label_type"] == "real"


def test_a_correlation_with_constant_labels_chooses_no_model_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = regression_config(tiny.write_files(tmp_path), "cls") | {"num_epochs": 5}
    train = Path(config["tasks"]["cls"]["train_file"])
    head, *rows = train.read_text(encoding="utf-8").splitlines()
    place = head.split("\t").index("label")
    cells = [row.split("\t") for row in rows]
    constant = ["\t".join([*row[:place], "2.5", *row[place + 1 :]]) for row in cells]
    dev = tmp_path / "constant.tsv"
    dev.write_text("\n".join([head, *constant]) + "\n", encoding="utf-8")
    config["tasks"]["cls"] |= {"dev_file": str(dev), "metrics": ["pearson"]}
    result = palm.Controller(config | {"early_stopping_patience": 1}, argv=[]).train()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("cls: pearson is NaN on the dev data" in line for line in warnings) == 1
    assert result.steps == {"cls": result.planned["cls"]}
    assert (tmp_path / "out" / "cls" / "infer_model").is_dir()
    assert not (tmp_path / "out" / "cls" / "best_model").exists()
