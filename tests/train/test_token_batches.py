"""Batches of so many tokens: by hand, as a property, and through both doors."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import tiny
from helpers.reader_files import rng_of_row, write_text
from helpers.streams import Numbers, stream
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, StorageError, TrainingError
from palm.reader import Column, MatchReader, Rows
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


@given(LENGTHS, st.integers(0, 20))
def test_a_batch_is_the_same_whether_it_is_reached_or_asked_for(lengths: list[int], room: int) -> None:
    most = min(max(lengths) + room, sum(lengths))
    in_turn = by_tokens(lengths, most)
    reached = [in_turn.picks(number) for number in range(20)]
    assert by_tokens(lengths, most).picks(19) == reached[19]
    assert in_turn.picks(3) == reached[3]


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


def test_a_pair_of_pairs_counts_with_both(folder: Path) -> None:
    text = "text_a\ttext_b\ttext_b_neg\nred\tred boat\tgreen old boat\n"
    path = write_text(folder, "ranked.tsv", text)
    reader = MatchReader(folder / "vocab.txt", 16, learning_strategy="pairwise")
    rows = reader.encode(list(reader.read(path, with_targets=True)), with_targets=True)
    # [CLS] red [SEP] red boat [SEP] and [CLS] red [SEP] green old boat [SEP]
    assert reader.row_tokens(rows).tolist() == [6 + 7]
    assert int(reader.collate(rows, [0], rng_of_row)["input_mask"].sum()) == 13


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


def test_batch_size_serves_prediction_where_there_is_a_number_of_tokens(folder: Path) -> None:
    first = controller(folder).training()
    config = tiny.config(folder, "cls", "mlm", "mrc", max_tokens_per_batch=50, batch_size=3)
    second = Controller(config, argv=[]).training()
    assert [step.loss.item() for step in islice(first.steps(), 5)] == [
        step.loss.item() for step in islice(second.steps(), 5)
    ]
    assert [task.task.rows_per_prediction for task in (first.tasks[0], second.tasks[0])] == [32, 3]


def test_neither_rows_nor_tokens_is_a_line_of_the_report(folder: Path) -> None:
    config = tiny.config(folder, "cls", max_tokens_per_batch=None)
    del config["batch_size"]
    with pytest.raises(ConfigError, match=r"task 'cls': .*batch_size .*max_tokens_per_batch"):
        Controller(config, argv=[])
    with pytest.raises(ConfigError, match="max_tokens_per_batch: 0"):
        Controller({**config, "max_tokens_per_batch": 0}, argv=[])
