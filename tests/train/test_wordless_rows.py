"""Rows in which mlm has no word to hide: refused in training, passed over in evaluation and prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

import palm
from helpers import tiny
from palm.controller.controller import Controller
from palm.train.callbacks import Evaluated

WORDLESS = "\u200b"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two dev files, the second with rows without a word between the rows of the first."""
    tiny.write_files(tmp_path)
    lines = (tmp_path / "mlm.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "dev.tsv").write_text("\n".join(lines[:9]) + "\n", encoding="utf-8")
    holes = [*lines[:9], WORDLESS, "\x01"]
    (tmp_path / "holes.tsv").write_text("\n".join(holes) + "\n", encoding="utf-8")
    (tmp_path / "none.tsv").write_text(f"text_a\n{WORDLESS}\n", encoding="utf-8")
    return tmp_path


def trained(folder: Path, dev: str) -> palm.TrainingResult:
    given = tiny.config(folder, "mlm", num_epochs=2)
    given["tasks"]["mlm"]["dev_file"] = str(folder / dev)
    return Controller(given, argv=[]).train()


def test_a_dev_row_without_a_word_is_passed_over(folder: Path) -> None:
    found = trained(folder, "holes.tsv")
    lines = [line for line in found.history if isinstance(line, Evaluated)]
    assert len(lines) == 2  # once an epoch
    expected = [line for line in trained(folder, "dev.tsv").history if isinstance(line, Evaluated)]
    for line, other in zip(lines, expected, strict=True):
        assert line.scores == other.scores
        assert line.dev_loss == pytest.approx(other.dev_loss)


def test_every_row_has_a_prediction_though_nothing_was_hidden(folder: Path) -> None:
    trained(folder, "dev.tsv")
    model = palm.load_model(folder / "out" / "mlm")
    records = list(model.predict_file(folder / "holes.tsv", folder / "predicted"))
    assert [bool(record["words"]) for record in records] == [True] * 8 + [False] * 2
    assert records[:8] == list(model.predict_file(folder / "dev.tsv", folder / "plain"))
    assert model.predict([WORDLESS]) == [{"index": 0, "words": []}]
