"""Prediction steps have about equally many tokens, and every row is predicted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import tiny
from palm.controller.controller import Controller
from palm.predict.loading import load_model
from palm.train.task_model import even_batches


def test_rows_of_one_length_make_batches_of_the_size_asked_for() -> None:
    assert even_batches(np.full(6, 9), 2) == [[0, 1], [2, 3], [4, 5]]
    assert [len(batch) for batch in even_batches(np.full(1024, 9), 32)] == [32] * 32
    assert [len(batch) for batch in even_batches(np.full(10, 9), 4)] == [3, 4, 3]


def test_long_rows_are_few_and_short_rows_are_many() -> None:
    lengths = np.array([2] * 60 + [30] * 4)
    batches = even_batches(lengths, 16)
    assert [len(batch) for batch in batches] == [30, 30, 2, 2]
    assert [int(lengths[batch].sum()) for batch in batches] == [60, 60, 60, 60]


@given(st.lists(st.integers(0, 512), max_size=80), st.integers(1, 40))
def test_every_row_is_in_one_batch_of_bounded_tokens(lengths: list[int], batch_size: int) -> None:
    batches = even_batches(np.array(lengths, dtype=np.int64), batch_size)
    order = [row for batch in batches for row in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[row] for row in order] == sorted(lengths)
    assert len(batches) <= -(-len(lengths) // batch_size)
    tokens = [max(length, 1) for length in lengths]
    most = sum(tokens) / max(-(-len(lengths) // batch_size), 1) + max(tokens, default=0)
    assert all(0 < sum(tokens[row] for row in batch) <= most for batch in batches)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_records_do_not_depend_on_the_batches(batch_size: int, tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    Controller(tiny.config(folder, "cls", num_epochs=0.5), argv=[]).train()
    model = load_model(folder / "out" / "cls" / "infer_model", precision="fp32")
    texts = [" ".join(["a", "red", "door"] * (1 + k % 5)) for k in range(30)]
    alone = [model.predict([text])[0]["logits"] for text in texts]
    model.batch_size = batch_size
    together = model.predict(texts)
    assert [record["index"] for record in together] == list(range(30))
    for record, logits in zip(together, alone, strict=True):
        assert record["logits"] == pytest.approx(logits, abs=1e-6)
