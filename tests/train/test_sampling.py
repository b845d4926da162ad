"""Which task, which rows, how many steps: against the originals' accounting and by hand."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.shared import GOLDEN
from helpers.streams import stream
from palm.core.errors import TrainingError
from palm.mixing.strategies import draw_task, plan_steps

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
