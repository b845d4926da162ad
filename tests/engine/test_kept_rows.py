"""Dev data are encoded once in a run, whatever their size, and evaluations stay the same bit by bit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from palm.core.files.fs import temporary_name
from palm.engine.run.evaluation import Evaluator, model_of
from palm.engine.training.loop import Training
from palm.reader import ClassifyReader
from palm.reader.rows.kept import KeptRows
from palm.reader.text.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each call of a tokenizer gets, as they come."""
    counts: list[int] = []
    for name in ("encode", "encode_with_offsets"):
        original = getattr(Tokenizer, name)

        def counted(self: Tokenizer, texts: Any, original: Any = original) -> Any:
            counts.append(len(texts))
            return original(self, texts)

        monkeypatch.setattr(Tokenizer, name, counted)
    return counts


def run_with_dev(folder: Path, *tasks: str) -> Training:
    config = tiny.config(folder, *tasks)
    for task in tasks:
        config["tasks"][task]["dev_file"] = config["tasks"][task]["train_file"]
    return palm.Controller(config, argv=[]).training()


@pytest.mark.parametrize("limit", [1 << 25, 0], ids=["in memory", "mapped"])
@pytest.mark.parametrize("task", ["cls", "match", "mlm", "mrc"])
def test_a_second_evaluation_encodes_nothing(
    task: str, limit: int, folder: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palm.reader.rows.kept.IN_MEMORY", limit)
    monkeypatch.setattr("palm.engine.inference.inference.CHUNK_EXAMPLES", 16)
    training = run_with_dev(folder, task)
    (only,) = training.tasks
    assert only.dev_file is not None
    alone = [model_of(training, only).evaluate_with_loss(only.dev_file) for _ in range(2)]
    evaluator = Evaluator(training)
    encoded.clear()
    first = evaluator.evaluate()
    assert sum(encoded) >= 40
    encoded.clear()
    second, third = evaluator.evaluate(), evaluator.evaluate()
    assert encoded == []
    assert first.scores == second.scores == third.scores
    assert first.dev_loss == second.dev_loss == third.dev_loss
    assert (dict(first.scores[task]), first.dev_loss.get(task)) == alone[0] == alone[1]


def test_a_run_encodes_dev_data_once(folder: Path, encoded: list[int]) -> None:
    config = tiny.config(folder, "cls", eval_every_n_steps=4)
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "dev.tsv").write_text("\n".join(lines[:14]) + "\n", encoding="utf-8")
    config["tasks"]["cls"]["dev_file"] = str(folder / "dev.tsv")
    palm.Controller(config, argv=[]).train()
    evaluations = (folder / "out" / "history.jsonl").read_text(encoding="utf-8").count('"dev_loss"')
    assert evaluations >= 5
    assert encoded.count(13) == 2  # once to predict, once with labels


def test_what_is_written_vanishes_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palm.reader.rows.kept.IN_MEMORY", 0)
    monkeypatch.setattr("palm.engine.inference.inference.CHUNK_EXAMPLES", 16)
    training = run_with_dev(folder, "cls")
    (only,) = training.tasks
    kept = KeptRows(folder / "big" / "disk")
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    name = temporary_name(folder / "palm-rows").name
    left = folder / "big" / "disk" / f"{name.replace(f'-{os.getpid()}.', f'-{died.pid}.')}.abc_1"
    left.mkdir(parents=True)
    model = model_of(training, only)
    expected = model.evaluate_with_loss(folder / "cls.tsv")
    assert [model.evaluate_with_loss(folder / "cls.tsv", None, kept) for _ in range(2)] == [expected] * 2
    places = list((folder / "big" / "disk").iterdir())
    assert len(places) == 2
    assert left not in places
    assert [len(list(place.iterdir())) for place in places] == [3, 3]  # 40 examples by 16
    del kept
    gc.collect()
    assert list((folder / "big" / "disk").iterdir()) == []


def test_where_nothing_can_be_written_rows_stay_in_memory(
    folder: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palm.reader.rows.kept.IN_MEMORY", 0)
    training = run_with_dev(folder, "cls")
    kept, model = KeptRows(folder / "cls.tsv" / "no folder"), model_of(training, training.tasks[0])
    expected = model.evaluate_with_loss(folder / "cls.tsv", None, kept)
    encoded.clear()
    assert model.evaluate_with_loss(folder / "cls.tsv", None, kept) == expected
    assert encoded == []


def test_a_file_that_has_changed_is_encoded_anew(folder: Path, encoded: list[int]) -> None:
    training = run_with_dev(folder, "cls")
    kept, model = KeptRows(), model_of(training, training.tasks[0])
    model.evaluate_with_loss(folder / "cls.tsv", None, kept)
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "cls.tsv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n", encoding="utf-8")
    os.utime(folder / "cls.tsv", ns=(1, 1))
    encoded.clear()
    changed = model.evaluate_with_loss(folder / "cls.tsv", None, kept)
    assert encoded == [40, 40]
    assert changed == model.evaluate_with_loss(folder / "cls.tsv")


class OwnReader(ClassifyReader):
    """A reader of a user's, which does not say that its rows may be kept."""


def test_rows_of_a_reader_that_does_not_say_so_are_not_kept(folder: Path) -> None:
    kept = KeptRows()
    assert not kept.begin(OwnReader(folder / "vocab.txt", 24), folder / "cls.tsv")
    assert kept.begin(ClassifyReader(folder / "vocab.txt", 24), folder / "cls.tsv")
    assert not kept.begin(ClassifyReader(folder / "vocab.txt", 24), folder / "missing.tsv")
