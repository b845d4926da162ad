"""The limits of the machine, memory and open files, as errors of palm with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from palm.core.errors import ResourceError

_NO_MEMORY = ("DefaultCPUAllocator", "can't start new thread", "failed to map segment from shared object")
"""Words of PyTorch, of Python and of the loader of libraries."""

_LESS = "lower batch_size and set gradient_accumulation_steps, or set max_tokens_per_batch"
LESS_OF_A_GPU = (
    f"To take less, {_LESS}, or activation_checkpointing; `palm check CONFIG --find_batch_size` finds "
    "batches that fit"
)
"""The remedy where the memory of a GPU is used up."""


@contextmanager
def explain_limits() -> Iterator[None]:
    """Turn what the system does not give into an error that says what to do; also a decorator.

    Raises:
        ResourceError: in place of `MemoryError`, PyTorch's errors for the memory of host and GPU, and what
            the system says of too many open files and of paths that are too long.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if (reason := _limit(error)) is None:
            raise
        raise ResourceError(reason) from error


def _limit(error: BaseException) -> str | None:
    """Return what an error says of a limit, and the remedy; None if it is of something else."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be imported here
        return f"the memory of the GPU is used up ({text.splitlines()[0][:200]}). {LESS_OF_A_GPU}"
    is_memory = isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)
    if is_memory or getattr(error, "errno", None) == errno.ENOMEM:
        return f"the memory is used up; {_LESS}, end other programs, or raise the limit (ulimit -v)"
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "Too many open files" in text:
        return "too many open files; raise the limit of this process (ulimit -n)"
    if getattr(error, "errno", None) == errno.ENAMETOOLONG:
        return f"{str(getattr(error, 'filename', ''))[:80]}… is no path: it is too long; give a shorter one"
    return None
