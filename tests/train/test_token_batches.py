"""Batches of so many tokens: by hand, as a property, and through both doors."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import tiny
from helpers.streams import Numbers, stream
from palm.controller.controller import Controller
from palm.core.errors import StorageError, TrainingError
from palm.reader import Column, Rows
from palm.train.stream import TaskStream

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


class Lengths(Numbers):
    """Rows that are their own number, with the given numbers of tokens."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.told = lengths

    def row_tokens(self, rows: Rows) -> Any:
        return Column.ragged([[0] * length for length in self.told]).lengths


def by_tokens(lengths: list[int], most: int, shuffle: bool = True, seed: int = 1) -> TaskStream:
    reader = Lengths(lengths)
    rows = reader.encode(range(len(lengths)), True)
    return TaskStream("a", reader, rows, seed=seed, shuffle=shuffle, max_tokens_per_batch=most)


@pytest.mark.parametrize(
    ("lengths", "batches", "steps_per_epoch"),
    [
        ([3, 1, 2, 2], [[0, 1], [2, 3], [0, 1], [2, 3]], 2),
        ([2, 2, 2], [[0, 1], [2, 0], [1, 2], [0, 1]], 1),  # the rest of an epoch is filled from the next
        ([3, 2, 2], [[0], [1, 2], [0], [1, 2]], 2),  # where the next row fits
        ([1, 4, 1], [[0], [1], [2, 0], [1]], 2),
    ],
)
def test_a_batch_of_four_tokens_has_as_many_of_the_next_rows_as_fit(
    lengths: list[int], batches: list[list[int]], steps_per_epoch: int
) -> None:
    in_order = by_tokens(lengths, most=4, shuffle=False)
    assert [in_order.batch(number)["token_ids"].tolist() for number in range(4)] == batches
    assert in_order.steps_per_epoch == steps_per_epoch


@given(LENGTHS, st.integers(0, 40), st.integers(0, 3))
@example(lengths=[1, 1, 6, 1, 1, 1, 1, 5], room=0, seed=1)
def test_every_row_is_seen_once_an_epoch_and_batches_are_full(
    lengths: list[int], room: int, seed: int
) -> None:
    most = min(max(lengths) + room, sum(lengths))
    batches = by_tokens(lengths, most, seed=seed)
    # Epochs differ in the number of their batches; three have no more batches than rows.
    picks = [batches.picks(number) for number in range(3 * len(lengths) + 1)]

    chain = [pick for batch in picks for pick in batch]
    for epoch in range(3):
        assert sorted(row for e, row in chain if e == epoch) == list(range(len(lengths)))
    for batch, following in pairwise(picks):
        used = sum(lengths[row] for _, row in batch)
        assert used <= most < used + lengths[following[0][1]]


@given(st.integers(1, 40), st.integers(1, 40))
def test_rows_of_one_token_make_the_batches_of_batch_size(rows: int, size: int) -> None:
    size = min(size, rows)
    counted, weighed = stream(rows, size), by_tokens([1] * rows, size)
    assert counted.steps_per_epoch == weighed.steps_per_epoch
    assert [counted.picks(k) for k in range(3 * rows)] == [weighed.picks(k) for k in range(3 * rows)]


def test_a_row_that_fits_into_no_batch_is_named() -> None:
    with pytest.raises(TrainingError, match=r"task 'a': .*row 2 .* 5 .*max_tokens.*now 4"):
        by_tokens([4, 5, 3], most=4)


def test_rows_that_fill_no_batch_are_an_error() -> None:
    with pytest.raises(TrainingError, match=r" 12 .*\(now 13\) to 12"):
        by_tokens([4, 5, 3], most=13)
    assert by_tokens([4, 5, 3], most=12).steps_per_epoch == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def controller(folder: Path, most: int = 50, *argv: str, **settings: Any) -> Controller:
    config = tiny.config(folder, "cls", "mlm", "mrc", max_tokens_per_batch=most, **settings)
    del config["batch_size"]
    return Controller(config, argv=argv)


def test_a_run_by_tokens_resumes_to_the_bit_and_only_with_the_same_number(folder: Path) -> None:
    controller(folder, save_every_n_steps=7).train()
    checkpoint = str(folder / "out" / "step_7")
    controller(folder, 50, "--resume", checkpoint, save_path=str(folder / "resumed")).train()
    for task in ("cls", "mlm", "mrc"):
        whole, resumed = (
            folder / run / task / "infer_model" / "model.safetensors" for run in ("out", "resumed")
        )
        assert whole.read_bytes() == resumed.read_bytes()

    with pytest.raises(StorageError, match=r"cls\.max_tokens_per_batch: 50\D*51"):
        controller(folder, 51, "--resume", checkpoint).train()
