"""Batches of rows of about one length, for encoders that compute padding: every row once, little padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helpers.streams import Numbers
from palm.reader.rows import Rows
from palm.train.stream import TaskStream

LENGTHS = np.random.default_rng(1).integers(4, 60, 1003)


class Lengths(Numbers):
    """Rows that are their own number and have `LENGTHS` tokens."""

    def row_tokens(self, rows: Rows) -> Any:
        return LENGTHS[: len(rows)]


def even(rows: int, batch_size: int, **settings: Any) -> TaskStream:
    reader = Lengths()
    stream = TaskStream(
        "a", reader, reader.encode(range(rows), True), seed=1, batch_size=batch_size, **settings
    )
    stream.group_by_length()
    return stream


def rows_of(stream: TaskStream, steps: Sequence[int]) -> list[list[int]]:
    return [stream.batch(step)["token_ids"].tolist() for step in steps]


def padding(batches: list[list[int]]) -> float:
    """The share of padding in batches."""
    real = sum(LENGTHS[rows].sum() for rows in batches)
    return float(1 - real / sum(len(rows) * LENGTHS[rows].max() for rows in batches))


@pytest.mark.parametrize(("rows", "size"), [(1003, 8), (1000, 8), (37, 8), (1003, 1003)])
def test_three_epochs_have_every_row_thrice(rows: int, size: int) -> None:
    batches = rows_of(even(rows, size), range(3 * rows // size + 1))
    seen = [row for batch in batches for row in batch]
    for epoch in range(3):
        assert sorted(seen[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_little_is_padded_in_every_epoch_and_the_order_is_one_of_chance() -> None:
    plain = TaskStream("a", Lengths(), Lengths().encode(range(1003), True), seed=1, batch_size=8)
    stream = even(1003, 8)
    for epoch in range(3):
        steps = range(epoch * 126, (epoch + 1) * 126)
        assert padding(rows_of(plain, steps)) > 0.35
        batches = rows_of(stream, steps)
        assert padding(batches) < 0.06
        longest = [LENGTHS[rows].max() for rows in batches]
        assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.3


def test_ranks_share_the_batches_and_a_batch_depends_on_its_number_alone() -> None:
    whole = rows_of(even(1003, 8), range(260))
    ranks = [even(1003, 8, rank=rank, world_size=2) for rank in range(2)]
    assert [
        rows for pair in zip(*(rows_of(each, range(130)) for each in ranks), strict=True) for rows in pair
    ] == whole
    assert rows_of(even(1003, 8), [251]) == [whole[251]]


def test_the_order_of_a_file_stays() -> None:
    assert rows_of(even(20, 8, shuffle=False), [0, 1]) == [list(range(8)), list(range(8, 16))]
