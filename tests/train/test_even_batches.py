"""Prediction steps have about equally many tokens, and every row is predicted once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from palm.train.task_model import even_batches


def test_rows_of_one_length_make_batches_of_the_size_asked_for() -> None:
    assert even_batches(np.full(6, 9), 2) == [[0, 1], [2, 3], [4, 5]]
    assert [len(batch) for batch in even_batches(np.full(1024, 9), 32)] == [32] * 32
    assert [len(batch) for batch in even_batches(np.full(10, 9), 4)] == [3, 4, 3]


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
