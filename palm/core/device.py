"""What the machine is: device, memory, precision and repeatable results."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from palm.core.errors import ConfigError, StorageError
from palm.core.logging import logger

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's `malloc.h`."""


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc keep up to 2 GiB of freed memory, for the whole process; return True if it does.

    Only the time at which memory returns to the system changes, never a result. Steps on short rows are 10 to
    18 % faster (Zen 4, bf16).
    """
    # Otherwise every step gets the memory for a gradient of 47 MB (MiniLM's word table) from the system,
    # which clears its pages one by one: 15,000 in a step on rows of 14 tokens, a fifth of its time.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    # Older versions of glibc refuse more than 32 MiB.
    accepted = mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20)
    keeps = bool(accepted and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
    logger.debug("mallopt: this process keeps up to 2 GiB of freed memory: %s", keeps)
    return keeps


FACTOR = 2
SLACK = 1 << 20
MORE_TENSORS = 512
"""A module may have twice as many values as the weights and a million more (a pooler that the weights lack, a
table that a shared one replaces), in twice as many tensors and 512 more: shapes are compared afterwards."""


@contextmanager
def within_weights(weights: Mapping[str, Tensor], place: object) -> Iterator[None]:
    """Fail if a module that is built in this block becomes much larger than its weights.

    A wrong size in a description then costs no memory: torch's modules register a parameter before they fill
    it, and memory that is never written is never committed. The hook is process-wide during the block.

    Args:
        weights: the weights that will be loaded; tensors without storage will do.
        place: where the modules are described, for the message.

    Raises:
        StorageError: the modules become too large.
    """
    numbers = FACTOR * sum(value.numel() for value in weights.values()) + SLACK
    tensors = FACTOR * len(weights) + MORE_TENSORS
    thread = threading.get_ident()
    asked = [0, 0]

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() != thread:  # the hook is also called for other threads
            return
        asked[0] += parameter.numel()
        asked[1] += 1
        if asked[0] > numbers or asked[1] > tensors:
            raise StorageError(
                f"{place}: the settings ask for far more parameters than the {len(weights)} saved tensors; "
                f"a size in them is wrong ({type(module).__name__}.{name} is {list(parameter.shape)})"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


DeviceName = Literal["auto", "cpu", "cuda"]

_log_once = functools.cache(logger.info)


def device_of(use_gpu: bool, name: DeviceName = "auto") -> torch.device:
    """Return the device for the settings `use_gpu` and `device`; log a fallback to the CPU once.

    Raises:
        ConfigError: `device` is cuda, and no GPU is visible.
    """
    wanted = name == "cuda" or (name == "auto" and use_gpu)
    if wanted and torch.cuda.is_available():
        return torch.device("cuda")
    if name == "cuda":
        raise ConfigError("device: no GPU is visible; check CUDA_VISIBLE_DEVICES, or use auto or cpu")
    if wanted:
        _log_once("no GPU is visible: running on the CPU")
    return torch.device("cpu")


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
