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

LESS_PREDICTED = "To take less, lower pred_batch_size, or the `batch_size` of a model that was loaded"
"""The same for prediction and evaluation."""


@contextmanager
def explain_limits(of_a_gpu: str = LESS_OF_A_GPU) -> Iterator[None]:
    """Turn what the system does not give into an error that says what to do; also a decorator.

    Args:
        of_a_gpu: the remedy for its memory.

    Raises:
        ResourceError: in place of `MemoryError`, PyTorch's errors for the memory of host and GPU, and what
            the system says of too many open files and of paths that are too long.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if (reason := _limit(error, of_a_gpu)) is None:
            raise
        raise ResourceError(reason) from error


def _limit(error: BaseException, of_a_gpu: str) -> str | None:
    """Return what an error says of a limit, and the remedy; None if it is of something else."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be imported here
        return f"the memory of the GPU is used up ({text.splitlines()[0][:200]}). {of_a_gpu}"
    is_memory = isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)
    if is_memory or getattr(error, "errno", None) == errno.ENOMEM:
        return f"the memory is used up; {_LESS}, end other programs, or raise the limit (ulimit -v)"
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "Too many open files" in text:
        return "too many open files; raise the limit of this process (ulimit -n)"
    if getattr(error, "errno", None) == errno.ENAMETOOLONG:
        return f"{str(getattr(error, 'filename', ''))[:80]}… is no path: it is too long; give a shorter one"
    return None
