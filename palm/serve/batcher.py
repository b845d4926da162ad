"""The queue of requests, and the thread that computes it batch after batch."""

from __future__ import annotations

import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any

from palm.core.logging import logger


@dataclass(frozen=True, eq=False)
class Request:
    """An accepted request, encoded and waiting for its answer.

    Args:
        rows: its encoded texts.
        num_tokens: the tokens that they add to a batch.
        model: the model that encoded them, which must also compute them.
        answer: the results; cancelled if nobody waits for them any more.
    """

    rows: Sequence[Any]
    num_tokens: int
    model: Any
    answer: Future[Any] = field(default_factory=Future)


def next_batch(queue: Sequence[Request], max_tokens: int) -> tuple[list[Request], list[Request]]:
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


class Batcher:
    """A thread that answers the requests in its queue.

    There is no timer: a batch is made of what arrived while the last one was computed.

    Args:
        compute: returns one answer for each request of a batch.
        max_tokens: see `next_batch`.

    Attributes:
        thread: the thread, which ends after `close`.
    """

    def __init__(self, compute: Callable[[Sequence[Request]], Sequence[Any]], max_tokens: int) -> None:
        self._compute = compute
        self._max_tokens = max_tokens
        self._queue: list[Request] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self.thread = threading.Thread(target=self._run, name="palm-compute", daemon=True)
        self.thread.start()

    def submit(self, request: Request) -> None:
        """Append a request to the queue."""
        with self._changed:
            self._queue.append(request)
            self._changed.notify()

    def close(self) -> None:
        """Answer everything in the queue, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while batch := self._next():
            # From here on a request cannot be cancelled.
            if started := [each for each in batch if each.answer.set_running_or_notify_cancel()]:
                self._answer(started)

    def _next(self) -> list[Request]:
        """Wait for requests and return a batch of them; [] after the last one of a closed queue."""
        with self._changed:
            while True:
                batch, self._queue = next_batch(self._queue, self._max_tokens)
                if batch or self._is_closed:
                    return batch
                self._changed.wait()

    def _answer(self, batch: Sequence[Request]) -> None:
        try:
            answers = self._compute(batch)
        except Exception as error:
            if len(batch) == 1:
                logger.error("a request could not be computed: %s", place_of(error))
                batch[0].answer.set_exception(error)
            else:  # one of them may be the reason; the others still get their answers
                for request in batch:
                    self._answer([request])
        else:
            for request, answer in zip(batch, answers, strict=True):
                request.answer.set_result(answer)


def place_of(error: BaseException) -> str:
    """Return the kind of an error and the line that raised it; its message may quote somebody's text."""
    lines = [
        f"{frame.f_globals.get('__name__')}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return f"{type(error).__name__} in {lines[-1] if lines else 'an unknown place'}"
