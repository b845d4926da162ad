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
    lost_a_process,
    num_ranks,
    rank,
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
    "lost_a_process",
    "naming_the_lost",
    "num_ranks",
    "own_part",
    "rank",
    "record_failure",
    "summed",
    "undivided",
    "used_up",
    "whole",
]
