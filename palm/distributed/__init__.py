"""Training on several devices and machines by the means of `torch.distributed` and `torchrun`."""

from palm.distributed.failures import naming_the_lost, record_failure
from palm.distributed.group import (
    DEFAULT_TIMEOUT,
    barrier,
    dealt,
    from_first,
    gathered,
    is_first,
    is_launched,
    join,
    launch_id,
    num_ranks,
    rank,
    restarts,
    summed,
    used_up,
)
from palm.distributed.launch import launch
from palm.distributed.replica import GradientExchange, Parallel, Replica
from palm.distributed.shards import like, own_part, undivided, whole

__all__ = [
    "DEFAULT_TIMEOUT",
    "GradientExchange",
    "Parallel",
    "Replica",
    "barrier",
    "dealt",
    "from_first",
    "gathered",
    "is_first",
    "is_launched",
    "join",
    "launch",
    "launch_id",
    "like",
    "naming_the_lost",
    "num_ranks",
    "own_part",
    "rank",
    "record_failure",
    "restarts",
    "summed",
    "undivided",
    "used_up",
    "whole",
]
