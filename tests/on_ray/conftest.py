"""One small Ray cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A cluster of this machine with two CPUs; without Ray, the test is skipped."""
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    ray.init(
        num_cpus=2,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
