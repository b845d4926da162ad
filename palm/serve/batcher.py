"""The queue of requests, and the thread that computes it batch after batch."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any, Generic, TypeVar

from palm.core.logging import logger

R = TypeVar("R")
"""Encoded texts of one request."""


@dataclass(frozen=True, eq=False)
class Request(Generic[R]):
    """An accepted request, encoded and waiting for its answer.

    Args:
        rows: its encoded texts.
        num_tokens: the tokens that they add to a batch.
        model: the model that encoded them, which must also compute them.
        answer: the results; cancelled if nobody waits for them any more.
    """

    rows: R
    num_tokens: int
    model: object
    answer: Future[Any] = field(default_factory=Future)


def next_batch(queue: Sequence[Request[R]], max_tokens: int) -> tuple[list[Request[R]], list[Request[R]]]:
    """Split a queue into the next batch and the requests that stay, both in the order of arrival.

    The batch has the oldest request, whatever its size, and as many of the following ones as fit. Nothing
    overtakes a request that does not fit, so none waits for ever. Cancelled requests are in neither part.

    Args:
        queue: the waiting requests, oldest first.
        max_tokens: the most tokens in a batch of several requests.
    """
    waiting = [request for request in queue if not request.answer.cancelled()]
    same_model = takewhile(lambda request: request.model is waiting[0].model, waiting)
    size = num_fitting((request.num_tokens for request in same_model), max_tokens)
    return waiting[:size], waiting[size:]


def num_fitting(tokens: Iterable[int], most: int) -> int:
    """Return the number of first items that have at most `most` tokens together; 1 if the first has more."""
    totals = list(accumulate(tokens))
    return max(bisect_right(totals, most), min(1, len(totals)))


class Batcher(Generic[R]):
    """A thread that answers the requests in its queue.

    There is no timer: a batch is made of what arrived while the last one was computed.

    Args:
        compute: returns one answer for each request of a batch.
        max_tokens: see `next_batch`.
        observe: called with each batch and the seconds that it took.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Request[R]]], Sequence[Any]],
        max_tokens: int,
        observe: Callable[[Sequence[Request[R]], float], None],
    ) -> None:
        self._compute = compute
        self._max_tokens = max_tokens
        self._observe = observe
        self._queue: list[Request[R]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="palm-compute", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True as long as its thread runs."""
        return self._thread.is_alive()

    def submit(self, request: Request[R]) -> None:
        """Append a request to the queue."""
        with self._changed:
            self._queue.append(request)
            self._changed.notify()

    def close(self) -> None:
        """Answer everything in the queue, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            # From here on a request cannot be cancelled.
            if started := [each for each in batch if each.answer.set_running_or_notify_cancel()]:
                begin = time.perf_counter()
                self._answer(started)
                self._observe(started, time.perf_counter() - begin)

    def _next(self) -> list[Request[R]]:
        """Wait for requests and return a batch of them; [] after the last one of a closed queue."""
        with self._changed:
            while True:
                batch, self._queue = next_batch(self._queue, self._max_tokens)
                if batch or self._is_closed:
                    return batch
                self._changed.wait()

    def _answer(self, batch: Sequence[Request[R]]) -> None:
        try:
            answers = self._compute(batch)
        except Exception as error:
            if len(batch) > 1:  # one of them may be the reason; the others still get their answers
                for request in batch:
                    self._answer([request])
                return
            logger.error("a request could not be computed: %s", place_of(error))
            batch[0].answer.set_exception(error)
            return
        for request, answer in zip(batch, answers, strict=True):
            request.answer.set_result(answer)


def place_of(error: BaseException) -> str:
    """Return the kind of an error and the line that raised it; its message may quote somebody's text."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" in {last.tb_frame.f_globals.get('__name__')}:{last.tb_lineno}" if last is not None else ""
    return f"{type(error).__name__}{where}"
