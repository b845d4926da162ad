"""Memory that a step frees stays with the process, for the next step, on a CPU."""

from __future__ import annotations

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The names of settings in glibc's `malloc.h`, `M_TRIM_THRESHOLD` and the like."""


@functools.cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 2 GiB of what is freed; True where that could be done.

    It holds for the whole process, and from its second call on it is nothing. What it changes is when memory
    goes back to the system, and no result.
    """
    # A gradient of 47 MB, that of MiniLM's word table, otherwise comes from the system at every step, which
    # has to clear its pages one by one: 15,000 of them in a step on rows of 14 tokens, a fifth of its time.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    # Older ones refuse more than 32 MiB.
    accepted = mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20)
    return bool(accepted and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
