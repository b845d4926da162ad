"""From accepted texts to their results: bounds, tokenization, the queue, and the end of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import HTTPException

from palm.core.errors import ConfigError, DataError
from palm.predict.joint import EncodedText
from palm.reader import Record
from palm.reader.tables.columns import cut
from palm.serve.batcher import Batcher, Request, num_fitting
from palm.serve.metrics import Metrics
from palm.serve.models import ModelSource

MESSAGE = 300
"""The most characters of an error message, which may quote the text."""

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Bounds:
    """What a server accepts.

    Args:
        queue: requests that wait or are computed; more are refused with status 429.
        texts: texts of a request; more are refused with status 413.
        characters: characters of all texts of a request; more are refused with status 413.
        batch_tokens: tokens of a batch; a request with more is a batch of its own.
        seconds: time for the body of a request (status 408) and for its answer (status 504).
    """

    queue: int = 256
    texts: int = 64
    characters: int = 100_000
    batch_tokens: int = 4096
    seconds: float = 30.0


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Service:
    """The models of a server, with the threads that tokenize and compute.

    Args:
        source: the models.
        bounds: what is accepted.
        metrics: counts batches and texts.

    Attributes:
        num_waiting: accepted requests without an answer.
    """

    def __init__(self, source: ModelSource, bounds: Bounds, metrics: Metrics) -> None:
        self.source = source
        self.bounds = bounds
        self.num_waiting = 0
        self._metrics = metrics
        self._encoder = ThreadPoolExecutor(1, "palm-encode")
        self._batcher: Batcher[list[EncodedText]] = Batcher(
            self._compute, bounds.batch_tokens, metrics.count_batch
        )

    @property
    def is_alive(self) -> bool:
        """True as long as requests are computed."""
        return self._batcher.is_alive

    def close(self) -> None:
        """Answer all accepted requests and end the threads."""
        self._encoder.shutdown()
        self._batcher.close()

    async def watch(self) -> None:
        """Look for new models for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if await asyncio.to_thread(self.source.reload):
                self._metrics.loads.inc()

    async def results(
        self, texts: Sequence[Any], tasks: Sequence[str] | None, gone: Callable[[], Coroutine[Any, Any, None]]
    ) -> tuple[list[dict[str, Record]], int]:
        """Predict texts; return task -> record of each of them, and the number of tokens.

        Args:
            texts: what the `predict` of the tasks takes.
            tasks: names of tasks; None for all.
            gone: returns when the client hangs up.

        Raises:
            HTTPException: a bound is exceeded, or a text or task cannot be used.
            ClientGoneError: the client hung up.
        """
        self._check(texts)
        self.num_waiting += 1
        self._metrics.waiting.inc()
        hangs_up = asyncio.ensure_future(gone())
        answer = asyncio.ensure_future(self._answer(texts, tasks))
        try:
            await asyncio.wait(
                (answer, hangs_up), timeout=self.bounds.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if answer.done():
                return answer.result()
            if hangs_up.done():
                raise ClientGoneError
            raise HTTPException(504, f"no answer within {self.bounds.seconds:g} seconds; try again later")
        finally:
            hangs_up.cancel()
            answer.cancel()
            self.num_waiting -= 1
            self._metrics.waiting.dec()

    async def _answer(
        self, texts: Sequence[Any], tasks: Sequence[str] | None
    ) -> tuple[list[dict[str, Record]], int]:
        model = self.source.model
        loop = asyncio.get_running_loop()
        try:
            # One thread, so requests stay in the order of their arrival.
            rows = await loop.run_in_executor(self._encoder, model.encode, texts, tasks)
        except (ConfigError, DataError) as error:
            raise HTTPException(422, cut(str(error), MESSAGE)) from None
        request = Request(rows, sum(text.num_tokens for text in rows), model)
        self._batcher.submit(request)
        results: list[dict[str, Record]] = await asyncio.wrap_future(request.answer)
        for text, result in zip(rows, results, strict=True):
            for task in text.cut:
                result[task]["truncated"] = True
        self._metrics.count_texts(rows)
        return results, request.num_tokens

    def _compute(self, batch: Sequence[Request[list[EncodedText]]]) -> list[list[dict[str, Record]]]:
        model: Any = batch[0].model
        texts = [text for request in batch for text in request.rows]
        results: list[dict[str, Record]] = []
        while rest := texts[len(results) :]:  # more than once only for a request that is larger than a batch
            size = num_fitting((text.num_tokens for text in rest), self.bounds.batch_tokens)
            results += model.predict_rows(rest[:size])
        left = iter(results)
        return [list(islice(left, len(request.rows))) for request in batch]

    def _check(self, texts: Sequence[Any]) -> None:
        if self.num_waiting >= self.bounds.queue:
            message = f"{self.num_waiting} requests are waiting; try again later"
            raise HTTPException(429, message, {"Retry-After": "1"})
        if len(texts) > self.bounds.texts:
            message = f"{len(texts)} texts; a request may have {self.bounds.texts}"
            raise HTTPException(413, message)
        if (count := sum(map(_characters, texts))) > self.bounds.characters:
            raise HTTPException(413, f"{count} characters; a request may have {self.bounds.characters}")


def _characters(value: Any) -> int:
    """Count the characters of a text, or of all texts in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, [*value, *value.values()]))
    return sum(map(_characters, value)) if isinstance(value, list) else 1
