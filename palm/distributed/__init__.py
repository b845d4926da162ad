"""Training on several devices and machines by the means of `torch.distributed` and `torchrun`."""

from palm.distributed.failures import record_failure, report_missing_ranks
from palm.distributed.group import (
    DEFAULT_TIMEOUT,
    all_reduce_sum,
    barrier,
    exhaust,
    from_first,
    gather_objects,
    is_first,
    is_launched,
    join,
    launch_id,
    lost_a_process,
    num_ranks,
    rank,
    split_among_ranks,
)
from palm.distributed.launch import launch
from palm.distributed.replica import Parallel, Replica
from palm.distributed.shards import full_tensor, full_tensors, local_shard, shard_like

__all__ = [
    "DEFAULT_TIMEOUT",
    "Parallel",
    "Replica",
    "all_reduce_sum",
    "barrier",
    "exhaust",
    "from_first",
    "full_tensor",
    "full_tensors",
    "gather_objects",
    "is_first",
    "is_launched",
    "join",
    "launch",
    "launch_id",
    "local_shard",
    "lost_a_process",
    "num_ranks",
    "rank",
    "record_failure",
    "report_missing_ranks",
    "shard_like",
    "split_among_ranks",
]
