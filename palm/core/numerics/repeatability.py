"""Kernels that add in a fixed order, so that a run on a GPU repeats itself bit by bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def fixed_order(wanted: bool) -> Iterator[None]:
    """Within it, torch takes kernels that add in a fixed order, and refuses what it has only others for.

    Args:
        wanted: False leaves it as torch has it.
    """
    if not wanted:
        yield
        return
    # cuBLAS reads it when it is first used, and torch refuses products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    checks: Any = torch.utils.deterministic
    was_filled = checks.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    checks.fill_uninitialized_memory = False  # a search for faults, which takes time in every step
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        checks.fill_uninitialized_memory = was_filled
