"""Errors of ranks that wait for other ranks, and the record of a failure for the launcher."""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from palm.core.errors import TrainingError
from palm.parallel.group import (
    LEAVE_DELAY,
    is_launched,
    is_main_process,
    leave,
    rank,
    roll_call_group,
    world_size,
)

SIGNS = ("gloo", "Timed out", "NCCL", "Connection reset", "Connection closed", "Broken pipe")
"""Parts of the backends' messages about other ranks; gloo has no exception class of its own."""

ROLL_CALL = timedelta(seconds=5)
"""Time that the remaining ranks wait for each other to find out which ranks are missing."""


@contextmanager
def report_missing_ranks(place: str) -> Iterator[None]:
    """Name the missing ranks if this rank times out within the context.

    Args:
        place: the position in the run, such as "at global step 7".

    Raises:
        TrainingError: replaces the backend's error.
    """
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or not any(sign in str(error) for sign in SIGNS):
            raise
        # Rank 0 gives up first, so its message is the first failure, which the launcher shows.
        patience = ROLL_CALL if is_main_process() else 2 * ROLL_CALL
        missing = "all ranks respond now"
        try:
            dist.monitored_barrier(roll_call_group(), timeout=patience, wait_all_ranks=True)
        except RuntimeError as unanswered:  # rank 0's names the ranks
            missing = _message(unanswered)
        raise TrainingError(
            f"rank {rank()} of {world_size()} timed out waiting for another rank {place} "
            f"({_message(error)}): {missing}. Check the messages of the missing ranks; if they are only "
            "slow, increase process_group_timeout"
        ) from None


def _message(error: RuntimeError) -> str:
    """Return the first sentence of the backend's message, without its source location."""
    return re.sub(r"^\[/[^]]*\]\s*", "", str(error).strip()).splitlines()[0].split(". ")[0]


def record_failure(error: BaseException) -> None:
    """Record an error for the launcher, which reports the rank that failed first and its error."""
    if is_launched():
        # The other ranks may be waiting for this one and would not take part in `leave`; wait as it does.
        atexit.unregister(leave)
        atexit.register(time.sleep, LEAVE_DELAY)
        try:
            raise error  # the handler records the exception that is being handled
        except BaseException:
            get_error_handler().record_exception(error)
