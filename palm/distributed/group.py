"""The processes that train together: rank, joining, and exchange.

One process is one device. Without a launcher there is one process, and nothing here does anything.
"""

from __future__ import annotations

import atexit
import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from palm.core.errors import ConfigError
from palm.core.logging import logger

T = TypeVar("T")

DEFAULT_TIMEOUT = 1800.0
"""Seconds; that of gloo."""

LEAVE_TAKING = 0.2
"""Seconds in which gloo's threads let go of what they hold; long, because a crowded machine may be late."""


def is_launched() -> bool:
    """Return whether a launcher (`torchrun`) started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _restarts() -> int:
    """Count the restarts by this machine's launcher; that of a machine that joined late has none."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def lost_a_process() -> bool:
    """Return whether any machine restarted its processes because one was lost; every rank must call it."""
    return int(all_reduce_sum(torch.tensor(_restarts()))) > 0


def launch_id() -> str | None:
    """Return the id of the launch, which restarts keep; None without a launcher."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def join(device: torch.device, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Meet the other processes, once; where there are none, nothing happens.

    Args:
        device: where this process computes; of several GPUs, it takes the one of its local rank.
        timeout: seconds after which waiting for another process is given up.

    Raises:
        ConfigError: more processes on this machine than GPUs.
    """
    if not is_launched() or dist.is_initialized():
        return
    backend = "gloo"
    if device.type == "cuda":
        gpu = int(os.environ.get("LOCAL_RANK", "0"))
        visible = torch.cuda.device_count()
        if gpu >= visible:
            raise ConfigError(
                f"process {gpu} of this machine has no GPU: {visible} are visible; start {visible} at most"
            )
        torch.cuda.set_device(gpu)
        backend = "cpu:gloo,cuda:nccl"
    patience = timedelta(seconds=timeout)
    store, number, size = next(rendezvous("env://", timeout=patience))
    if _is_launchers_store():
        # It outlives a restart, and with it the addresses of processes that are gone.
        store = PrefixStore(f"palm/{_restarts()}/{size}", store)
    dist.init_process_group(backend, timeout=patience, world_size=size, rank=number, store=store)
    roll_call_group()
    atexit.register(leave)
    if is_first() and _cannot_replace_a_machine():
        logger.warning(
            "this launcher cannot replace a lost machine (pytorch/pytorch#135712); torchrun can, with "
            "--rdzv-backend c10d, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set on all machines"
        )


def _is_launchers_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _cannot_replace_a_machine() -> bool:
    names = ("TORCHELASTIC_MAX_RESTARTS", "GROUP_WORLD_SIZE")
    restarts, machines = (int(os.environ.get(name, "0")) for name in names)
    return restarts > 0 and machines > 1 and _is_launchers_store()


def leave() -> None:
    """Part from the other processes, at the end of the program."""
    # A thread of gloo's lets go of an exchanged tensor after the exchange, and needs Python's lock for it.
    # One that asks for the lock when Python is ending is ended itself, and the process with it (code -6).
    time.sleep(LEAVE_TAKING)
    dist.destroy_process_group()


@functools.cache
def roll_call_group() -> dist.ProcessGroup:
    """All ranks once more, over connections that are whole when those of a failed exchange are not."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def num_ranks() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Return whether this is the process that logs and writes files."""
    return rank() == 0


def all_reduce_sum(value: Tensor) -> Tensor:
    """The sum over all ranks, in a new tensor; `value` itself where there is one rank."""
    if num_ranks() == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def barrier() -> None:
    """Wait until every rank is here."""
    if num_ranks() > 1:
        all_reduce_sum(torch.zeros(()))


def from_first(make: Callable[[], T], meanwhile: Callable[[], object] | None = None) -> T:
    """Compute a value on rank 0 and return it on every rank.

    Args:
        make: called on rank 0; its result is pickled for the others.
        meanwhile: called on the others, where `make` needs them.
    """
    if num_ranks() == 1:
        return make()
    box: list[T | None] = [make() if is_first() else None]
    if meanwhile is not None and not is_first():
        meanwhile()
    dist.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[return-value]


def exhaust(things: Iterable[object]) -> None:
    """Take all of an iterable for the sake of what happens meanwhile."""
    deque(things, maxlen=0)


def gather_objects(value: T) -> list[T]:
    """The values of all ranks, in their order, on rank 0; nothing on the others."""
    if num_ranks() == 1:
        return [value]
    values: list[T] | None = [value] * num_ranks() if is_first() else None
    dist.gather_object(value, values, dst=0)
    return values or []


def all_rows(value: Tensor) -> Tensor:
    """The rows of all ranks, in their order, with zeros where a rank has fewer columns.

    The gradient is that of the mean over all ranks' rows of a loss that every rank computes: each keeps its
    own rows in the graph, with the factor by which they count less there.
    """
    if num_ranks() == 1:
        return value
    own = torch.tensor(value.shape)  # on the CPU, because reading sizes from a GPU would wait for it
    gathered = [torch.empty_like(own) for _ in range(num_ranks())]
    dist.all_gather(gathered, own)
    shapes = torch.stack(gathered).tolist()
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    missing = [(0, whole - size) for whole, size in zip(largest, value.shape, strict=True)]
    padded = F.pad(value, [side for pair in reversed(missing) for side in pair])
    parts = [torch.empty_like(padded) for _ in shapes]
    dist.all_gather(parts, padded.detach())
    if value.requires_grad:
        # The difference of `counted` and itself is 0 and changes no number; its gradient has the factor.
        counted = sum(shape[0] for shape in shapes) / len(value) * padded
        parts[rank()] = padded.detach() + counted - counted.detach()
    return torch.cat([part[: shape[0]] for part, shape in zip(parts, shapes, strict=True)])


def split_among_ranks(things: Sequence[T]) -> list[T]:
    """This rank's share of things that are dealt out one by one.

    All ranks get equally many, because a model whose parameters are spread over them must be called
    equally often on each: where the last round lacks some, the last thing goes to several.
    """
    rounds = -(-len(things) // num_ranks())
    mine = (turn * num_ranks() + rank() for turn in range(rounds))
    return [things[min(number, len(things) - 1)] for number in mine]
