"""What a server counts, for Prometheus; with several worker processes, the sums over all of them."""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

POWERS = [2**power for power in range(17)]

REQUESTS = Counter("palm_requests", "Answered requests.", ["path", "status"])
SECONDS = Histogram("palm_request_seconds", "Time of a request.", ["path"])
WAITING = Gauge("palm_waiting_requests", "Requests without an answer.", multiprocess_mode="livesum")
TEXTS = Counter("palm_texts", "Predicted texts.", ["task"])
TRUNCATED = Counter("palm_truncated_texts", "Texts that were cut.", ["task"])
MODELS = Counter("palm_new_models", "Models that replaced another one.")
BATCH_REQUESTS = Histogram("palm_batch_requests", "Requests of a batch.", buckets=POWERS[:10])
BATCH_TOKENS = Histogram("palm_batch_tokens", "Tokens of a batch.", buckets=POWERS[4:])
BATCH_SECONDS = Histogram("palm_batch_seconds", "Time of a batch.")


def metrics_text() -> bytes:
    """Return all values in Prometheus's text format."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
