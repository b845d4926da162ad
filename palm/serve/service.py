"""From accepted texts to their results: models, bounds, tokenization, the queue, and the end of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from palm.core.errors import ConfigError, DataError, PalmError, StorageError
from palm.core.io import MANIFEST, read_bytes
from palm.core.logging import logger
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel, JointModel
from palm.predict.loading import load_models
from palm.reader import Record
from palm.reader.tables.columns import cut
from palm.serve import metrics
from palm.serve.batcher import Batcher, Request, num_fitting
from palm.train.model_card import label_names
from palm.train.model_paths import chosen_model

MESSAGE = 300
"""The most characters of an error message, which may quote the text."""

GPU_TOKENS = 4096
CPU_TOKENS = 512
"""Tokens of a batch. On a CPU, larger ones are hardly cheaper per token, and every request waits for one."""

POLL_SECONDS = 1.0
"""Time between looks for new models."""


@dataclass(frozen=True)
class Settings:
    """What a server serves, and what it accepts.

    Args:
        folders: saved models, or runs.
        options: those of `palm.load_model`.
        queue: requests that wait or are computed; more are refused with status 429.
        texts: texts of a request; more are refused with status 413.
        characters: characters of all texts of a request; more are refused with status 413.
        batch_tokens: tokens of a batch; 0 for 4096 on a GPU and 512 on a CPU.
        seconds: time for the body of a request (status 408) and for its answer (status 504).
        watch: replace a model when its directory is replaced.
        log_texts: write the texts of requests into the access log.
    """

    folders: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    queue: int = 256
    texts: int = 64
    characters: int = 100_000
    batch_tokens: int = 0
    seconds: float = 30.0
    watch: bool = False
    log_texts: bool = False


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Service:
    """The models of a server, with the threads that tokenize and compute.

    Attributes:
        model: all tasks, which answer new requests.
        num_waiting: accepted requests without an answer.

    Raises:
        PalmError: a model cannot be loaded, or two have a task of the same name.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._loaded = self._manifests()
        self.model = self._load()
        self.num_waiting = 0
        self._encoder = ThreadPoolExecutor(1, "palm-encode")
        device = next(iter(self.model.tasks.values())).device.type
        self._max_tokens = settings.batch_tokens or (GPU_TOKENS if device == "cuda" else CPU_TOKENS)
        self._batcher = Batcher(self._compute, self._max_tokens)

    @property
    def is_alive(self) -> bool:
        """True as long as requests are computed."""
        return self._batcher.thread.is_alive()

    def close(self) -> None:
        """Answer all accepted requests and end the threads."""
        self._encoder.shutdown()
        self._batcher.close()

    async def watch(self) -> None:
        """Look for new models for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            metrics.MODELS.inc(await asyncio.to_thread(self.reload))

    def reload(self) -> bool:
        """Load the directories again if one was replaced; return True if there is a new model.

        The old model stays if the new one cannot be loaded, which is logged.
        """
        try:
            found = self._manifests()
            if found == self._loaded:
                return False
            model = self._load()
            if self._manifests() != found:  # replaced while it was read: the next call reads it
                return False
        except PalmError as error:
            logger.warning("the model stays as it is: %s", error)
            return False
        self._loaded = found
        self.model = model
        logger.info("new model: %s", ", ".join(model.tasks))
        return True

    def _manifests(self) -> list[bytes]:
        return [read_bytes(chosen_model(Path(folder)) / MANIFEST) for folder in self.settings.folders]

    def _load(self) -> JointModel:
        tasks: dict[str, InferenceModel] = {}
        for folder in self.settings.folders:
            own = load_models(folder, **self.settings.options).tasks
            if both := sorted(tasks.keys() & own.keys()):
                raise StorageError(f"{folder}: another directory has {both[0]!r}, too; serve it by itself")
            tasks |= own
        model = JointModel(tasks)
        for task, each in tasks.items():  # the first batch makes what later ones reuse
            model.predict_rows(model.encode(each.examples(), [task]))
        return model

    def check(self, texts: Sequence[Any] = ()) -> None:
        """Refuse texts beyond the bounds, and any if the queue is full.

        Raises:
            HTTPException: the status and the reason.
        """
        if self.num_waiting >= self.settings.queue:
            message = f"{self.num_waiting} requests are waiting; try again later"
            raise HTTPException(429, message, {"Retry-After": "1"})
        if len(texts) > self.settings.texts:
            raise HTTPException(413, f"{len(texts)} texts; a request may have {self.settings.texts}")
        if (count := sum(map(_characters, texts))) > self.settings.characters:
            raise HTTPException(413, f"{count} characters; a request may have {self.settings.characters}")

    async def results(
        self, texts: Sequence[Any], tasks: Sequence[str] | None, gone: Awaitable[None]
    ) -> tuple[list[dict[str, Record]], int]:
        """Predict texts; return task -> record of each of them, and the number of tokens.

        Args:
            texts: what the `predict` of the tasks takes.
            tasks: names of tasks; None for all.
            gone: done when the client hangs up.

        Raises:
            HTTPException: a text or task cannot be used, or there is no answer in time.
            ClientGoneError: the client hung up.
        """
        self.num_waiting += 1
        ends = (asyncio.ensure_future(self._answer(texts, tasks)), asyncio.ensure_future(gone))
        answer, hangs_up = ends
        try:
            with metrics.WAITING.track_inprogress():
                await asyncio.wait(ends, timeout=self.settings.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if hangs_up.done():
                raise ClientGoneError
            raise HTTPException(504, f"no answer within {self.settings.seconds:g} seconds; try again later")
        finally:
            hangs_up.cancel()
            answer.cancel()
            self.num_waiting -= 1

    async def _answer(
        self, texts: Sequence[Any], tasks: Sequence[str] | None
    ) -> tuple[list[dict[str, Record]], int]:
        model = self.model
        loop = asyncio.get_running_loop()
        try:
            # One thread, so requests stay in the order of their arrival.
            rows = await loop.run_in_executor(self._encoder, model.encode, texts, tasks)
        except (ConfigError, DataError) as error:
            raise HTTPException(422, cut(str(error), MESSAGE)) from None
        request = Request(rows, sum(text.num_tokens for text in rows), model)
        self._batcher.submit(request)
        results: list[dict[str, Record]] = await asyncio.wrap_future(request.answer)
        for result in results:
            for task, record in result.items():
                metrics.TEXTS.labels(task).inc()
                metrics.TRUNCATED.labels(task).inc("truncated" in record)
        return results, request.num_tokens

    def _compute(self, batch: Sequence[Request]) -> list[list[dict[str, Record]]]:
        metrics.BATCH_REQUESTS.observe(len(batch))
        metrics.BATCH_TOKENS.observe(sum(request.num_tokens for request in batch))
        texts = [text for request in batch for text in request.rows]
        results: list[dict[str, Record]] = []
        with metrics.BATCH_SECONDS.time():
            while rest := texts[len(results) :]:  # again only for a request that is larger than a batch
                size = num_fitting((text.num_tokens for text in rest), self._max_tokens)
                results += batch[0].model.predict_rows(rest[:size])
        left = iter(results)
        return [list(islice(left, len(request.rows))) for request in batch]


def _characters(value: Any) -> int:
    """Count the characters of a text, or of all texts in it."""
    if isinstance(value, dict):
        return sum(map(_characters, [*value, *value.values()]))
    if isinstance(value, list):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 1


def described(model: InferenceModel) -> dict[str, Any]:
    """Describe a task for those who send it texts."""
    return {
        "kind": HEADS.name_of(type(model.head)),
        "labels": label_names(model.reader, model.head),
        "max_seq_len": getattr(model.reader, "max_seq_len", None),
        "example": model.examples()[0],
    }
