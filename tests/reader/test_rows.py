"""Rows keep every number of every row, however they are cut and joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from palm.reader import Column, Rows

NUMBERS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6)


def rows_of(lists: list[list[int]]) -> Rows:
    return Rows({"token_ids": Column.ragged(lists), "length": Column.scalar([len(row) for row in lists])})


@given(NUMBERS, NUMBERS)
def test_joined_rows_are_the_rows_of_the_parts(first: list[list[int]], second: list[list[int]]) -> None:
    joined = Rows.concatenate([rows_of(first), rows_of(second)])

    assert [joined["token_ids"][row].tolist() for row in range(len(joined))] == first + second
    assert joined.lengths.tolist() == [len(row) for row in first + second]
    assert joined["length"].values.tolist() == joined.lengths.tolist()
