"""Errors of ranks that wait for others, and their record for the launcher."""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from palm.core.errors import TrainingError
from palm.distributed.group import is_first, is_launched, leave, num_ranks, rank, roll_call_group

SIGNS = ("gloo", "Timed out", "NCCL", "Connection reset", "Connection closed", "Broken pipe")
"""What the engine's messages about other ranks contain; gloo has no exception class of its own."""

ROLL_CALL = timedelta(seconds=5)
"""How long the ranks that are left wait for one another to tell which are missing."""


@contextmanager
def report_missing_ranks(place: str) -> Iterator[None]:
    """Within it, a rank that times out says for which other rank it waited.

    Args:
        place: where in the run, such as "at global step 7".

    Raises:
        TrainingError: in place of the engine's error.
    """
    try:
        yield
    except RuntimeError as error:
        if num_ranks() == 1 or not any(sign in str(error) for sign in SIGNS):
            raise
        # Rank 0 gives up first: what it says is then the first failure that the launcher sees and shows.
        patience = ROLL_CALL if is_first() else 2 * ROLL_CALL
        missing = "all ranks answer now"
        try:
            dist.monitored_barrier(roll_call_group(), timeout=patience, wait_all_ranks=True)
        except RuntimeError as unanswered:  # rank 0's names the ranks
            missing = _message(unanswered)
        raise TrainingError(
            f"rank {rank()} of {num_ranks()} timed out waiting for another rank {place} "
            f"({_message(error)}): {missing}. Look for the messages of missing ranks; where they are "
            "only slow, a larger process_group_timeout helps"
        ) from None


def _message(error: RuntimeError) -> str:
    """The engine's message, without the place in its source code and what follows the first sentence."""
    return re.sub(r"^\[/[^]]*\]\s*", "", str(error).strip()).splitlines()[0].split(". ")[0]


def record_failure(error: BaseException) -> None:
    """Leave an error where the launcher looks for it, to tell which rank failed first, and why."""
    if is_launched():
        # The other ranks may be waiting for this one, and would not take leave of it.
        atexit.unregister(leave)
        try:
            raise error  # what is recorded is the exception that is being handled
        except BaseException:
            get_error_handler().record_exception(error)
