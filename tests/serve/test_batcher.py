"""The batcher: which requests form a batch, for any queue, and what its thread does with them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from palm.serve.batcher import Batcher, Request, next_batch

Waiting = list[tuple[int, bool, str]]
"""Tokens of each request, whether it was cancelled, and its model."""

queues = st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.sampled_from(["old", "new"])), max_size=30)


def requests_of(queue: Waiting) -> list[Request]:
    requests = [Request([number], tokens, model) for number, (tokens, _, model) in enumerate(queue)]
    for request, (_, is_cancelled, _) in zip(requests, queue, strict=True):
        if is_cancelled:
            request.answer.cancel()
    return requests


@given(queues, st.integers(1, 60))
def test_all_batches_of_a_queue_have_every_live_request_once_in_order_and_within_bounds(
    queue: Waiting, max_tokens: int
) -> None:
    rest: Sequence[Request] = requests_of(queue)
    batches = []
    while True:
        batch, rest = next_batch(rest, max_tokens)
        if not batch:
            break
        batches.append(batch)

    assert not rest
    assert [request.rows[0] for batch in batches for request in batch] == [
        number for number, (_, is_cancelled, _) in enumerate(queue) if not is_cancelled
    ]
    for batch in batches:
        assert len(batch) == 1 or sum(request.num_tokens for request in batch) <= max_tokens
        assert len({request.model for request in batch}) == 1
    for batch, following in pairwise(batches):
        tokens = sum(request.num_tokens for request in batch) + following[0].num_tokens
        assert tokens > max_tokens or following[0].model != batch[0].model  # no batch could be longer


@given(queues, queues, st.integers(1, 60))
def test_a_request_waits_only_for_those_before_it_whatever_arrives_later(
    queue: Waiting, later: Waiting, max_tokens: int
) -> None:
    requests = requests_of(queue)
    alone, with_later = requests, requests
    for _ in queue:
        first, alone = next_batch(alone, max_tokens)
        second, with_later = next_batch([*with_later, *requests_of(later)], max_tokens)
        known = [request for request in second if request in requests]
        assert known == first
        with_later = [request for request in with_later if request in requests]


def test_a_batch_forms_while_the_last_one_is_computed() -> None:
    started, go_on = threading.Event(), threading.Event()
    batches = []

    def compute(batch: Sequence[Request]) -> list[int]:
        batches.append([request.rows[0] for request in batch])
        started.set()
        assert go_on.wait(30)
        return [request.rows[0] * 10 for request in batch]

    batcher = Batcher(compute, 100)
    requests = [Request([number], 30, "model") for number in range(6)]
    batcher.submit(requests[0])
    assert started.wait(30)
    for request in requests[1:]:
        batcher.submit(request)
    requests[2].answer.cancel()
    go_on.set()
    batcher.close()

    assert batches == [[0], [1, 3, 4], [5]]
    assert [requests[number].answer.result(0) for number in (0, 1, 3, 4, 5)] == [0, 10, 30, 40, 50]
    assert not batcher.thread.is_alive()


def test_a_request_that_fails_takes_no_other_of_its_batch_along() -> None:
    go_on = threading.Event()

    def compute(batch: Sequence[Request]) -> list[float]:
        assert go_on.wait(30)
        return [1 / request.rows[0] for request in batch]

    batcher = Batcher(compute, 100)
    requests = [Request([number], 1, "model") for number in (1, 2, 0, 4)]
    for request in requests:
        batcher.submit(request)
    go_on.set()
    batcher.close()

    assert [requests[number].answer.result(0) for number in (0, 1, 3)] == [1, 0.5, 0.25]
    assert isinstance(requests[2].answer.exception(0), ZeroDivisionError)
