"""Limits of the machine, such as memory and open files, as errors with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from palm.core.errors import ResourceError

_NO_MEMORY = ("DefaultCPUAllocator", "can't start new thread", "failed to map segment from shared object")
"""Phrases in messages of PyTorch, Python and the dynamic loader."""

_LESS = "lower batch_size and set gradient_accumulation_steps, or set max_tokens_per_batch"
LESS_OF_A_GPU = (
    f"To use less, {_LESS}, or activation_checkpointing; `palm check CONFIG --find_batch_size` finds "
    "batches that fit"
)
"""The remedy in training if a GPU has too little memory."""

LESS_PREDICTED = "To use less, lower pred_batch_size, or the `batch_size` of a loaded model"
"""The remedy in prediction and evaluation."""


@contextmanager
def explain_limits(of_a_gpu: str = LESS_OF_A_GPU) -> Iterator[None]:
    """Turn errors about exhausted resources into one that gives the remedy; also a decorator.

    Args:
        of_a_gpu: the remedy for the memory of a GPU.

    Raises:
        ResourceError: instead of `MemoryError`, PyTorch's errors about the memory of host and GPU, and the
            system's errors about too many open files, too long paths and a removed working directory.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if (reason := _limit(error, of_a_gpu)) is None:
            raise
        raise ResourceError(reason) from error


def _limit(error: BaseException, of_a_gpu: str) -> str | None:
    """Return the limit that an error is about, and the remedy; None if it is about something else."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError":  # torch's; this avoids importing torch
        return f"the GPU is out of memory ({text.splitlines()[0][:200]}). {of_a_gpu}"
    is_memory = isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)
    if is_memory or getattr(error, "errno", None) == errno.ENOMEM:
        return f"out of memory; {_LESS}, end other programs, or raise the limit (ulimit -v)"
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "Too many open files" in text:
        return "too many open files; raise the limit of this process (ulimit -n)"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # from `os.getcwd`
        return "the working directory has been removed; change to another"
    if getattr(error, "errno", None) == errno.ENAMETOOLONG:
        return f"{str(getattr(error, 'filename', ''))[:80]}… is too long for a path; give a shorter one"
    return None
