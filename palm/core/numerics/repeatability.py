"""Deterministic kernels, with which a run on a GPU is reproducible bit by bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def fixed_order(wanted: bool) -> Iterator[None]:
    """Make torch use deterministic kernels, and refuse operations that have none.

    Args:
        wanted: False keeps torch's current setting.
    """
    if not wanted:
        yield
        return
    # cuBLAS reads this at its first use, and torch refuses products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    checks: Any = torch.utils.deterministic
    was_filled = checks.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    checks.fill_uninitialized_memory = False  # only for debugging, and costs time in every step
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        checks.fill_uninitialized_memory = was_filled
