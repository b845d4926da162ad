"""What a server counts, for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from palm.predict.joint import EncodedText
from palm.serve.batcher import Request


class Metrics:
    """The metrics of one server; with several worker processes, `text` has the sums of all of them.

    Attributes:
        requests: answered requests by path and status.
        seconds: time from the first byte of a request to the last of its answer.
        waiting: accepted requests without an answer.
        loads: models that replaced another one.
    """

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self.requests = Counter("palm_requests", "Answered requests.", ["path", "status"], registry=own)
        self.seconds = Histogram("palm_request_seconds", "Time of a request.", ["path"], registry=own)
        self.waiting = Gauge(
            "palm_waiting_requests",
            "Accepted requests without an answer.",
            registry=own,
            multiprocess_mode="livesum",
        )
        self._texts = Counter("palm_texts", "Predicted texts.", ["task"], registry=own)
        self._cut = Counter("palm_truncated_texts", "Texts that were cut.", ["task"], registry=own)
        self.loads = Counter("palm_model_loads", "Models that replaced another one.", registry=own)
        self._batch_requests = Histogram(
            "palm_batch_requests", "Requests of a batch.", buckets=[2**k for k in range(9)], registry=own
        )
        self._batch_tokens = Histogram(
            "palm_batch_tokens", "Tokens of a batch.", buckets=[2**k for k in range(4, 17)], registry=own
        )
        self._batch_seconds = Histogram("palm_batch_seconds", "Time of a batch.", registry=own)

    def count_batch(self, batch: Sequence[Request[Any]], seconds: float) -> None:
        """Count a computed batch."""
        self._batch_requests.observe(len(batch))
        self._batch_tokens.observe(sum(request.num_tokens for request in batch))
        self._batch_seconds.observe(seconds)

    def count_texts(self, texts: Sequence[EncodedText]) -> None:
        """Count the predicted texts of a request."""
        for text in texts:
            for task in text.chunks:
                self._texts.labels(task).inc()
            for task in text.cut:
                self._cut.labels(task).inc()

    def text(self) -> bytes:
        """Return all values in Prometheus's text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
