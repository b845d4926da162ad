"""Which task, which rows, how many steps: against the originals' accounting and by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.shared import GOLDEN
from helpers.streams import Numbers, stream
from palm.core.errors import TrainingError
from palm.mixing.strategies import draw_task, plan_steps
from palm.reader.rows import Column, Rows
from palm.train.stream import TaskStream
from palm.train.task_model import even_batches

CASES = json.loads((GOLDEN / "sampling.json").read_text(encoding="utf-8"))
AUXILIARY = 9999999999  # how the original writes "ends nothing"


@pytest.mark.parametrize("name", CASES)
def test_expected_steps_are_those_of_the_original(name: str) -> None:
    case = CASES[name]
    main = case["steps_pur_epoch"][case["sampling_reference"]]
    for task, expected in case["expected_steps"].items():
        planned = plan_steps(case["num_epochs"], case["mix_ratio"][task], main)
        assert planned == expected or expected == AUXILIARY


@pytest.mark.parametrize("name", CASES)
def test_tasks_are_drawn_with_the_frequencies_of_the_original(name: str) -> None:
    case = CASES[name]
    ratios, draws = list(case["mix_ratio"].values()), 3000
    counts = Counter(draw_task(7, step, ratios) for step in range(draws))
    for index, weight in enumerate(case["weights"]):
        four_sigma = 4 * (draws * weight * (1 - weight)) ** 0.5
        assert abs(counts[index] - draws * weight) < four_sigma


def test_the_rest_of_an_epoch_is_filled_from_the_next() -> None:
    batches = [stream(rows=5, batch_size=2, shuffle=False).batch(k)["token_ids"].tolist() for k in range(5)]
    assert batches == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_every_row_is_seen_once_an_epoch(rows: int, batch_size: int, seed: int) -> None:
    batch_size = min(batch_size, rows)
    seen = stream(rows, batch_size, seed)
    picks = [pick for step in range(3 * rows) for pick in seen.picks(step)]
    for epoch in range(3):
        assert sorted(row for e, row in picks if e == epoch) == list(range(rows))


def test_what_is_drawn_for_a_row_changes_with_the_epoch_and_repeats_with_the_step() -> None:
    def drawn(epoch: int) -> dict[int, int]:
        batch = stream(6, 6).batch(epoch)
        return dict(zip(batch["token_ids"].tolist(), batch["drawn"].tolist(), strict=True))

    assert drawn(0) == drawn(0)
    assert all(drawn(0)[row] != drawn(1)[row] for row in range(6))


def test_fewer_rows_than_a_batch_is_an_error_that_says_so() -> None:
    with pytest.raises(TrainingError, match=r"task 'a': 7 .*batch_size \(now 8\) to 7"):
        stream(rows=7, batch_size=8)


# Prediction steps have about equally many tokens, and every row is predicted once.


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


# Batches of rows of about one length, for encoders that compute padding: every row once, little padding.


LENGTHS = np.random.default_rng(1).integers(4, 60, 1003)


class Lengths(Numbers):
    """Rows that are their own number and have `LENGTHS` tokens."""

    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        return Rows({"token_ids": Column.ragged([[number] * LENGTHS[number] for number in examples])})


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
