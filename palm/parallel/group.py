"""The group of processes that train together: joining it, ranks, and collective operations.

Each process uses one device. Without a launcher there is one process, and these functions do nothing.
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

from palm.core.errors import ConfigError, PalmError, TrainingError
from palm.core.logging import logger

T = TypeVar("T")

DEFAULT_TIMEOUT = 1800.0
"""Seconds; the default of gloo."""

LEAVE_DELAY = 0.2
"""Seconds for gloo's threads to release their tensors; generous, because a busy machine may be slow."""


def is_launched() -> bool:
    """Check whether a launcher (`torchrun`) started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _restarts() -> int:
    """Return the number of restarts by this machine's launcher; it is 0 on a machine that joined late."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def lost_a_process() -> bool:
    """Check whether any machine restarted its processes after losing one; all ranks must call this."""
    return int(all_reduce_sum(torch.tensor(_restarts()))) > 0


def launch_id() -> str | None:
    """Return the id of the launch, which does not change with restarts; None without a launcher."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def join(device: torch.device, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Join the process group, once; a single process does nothing.

    Args:
        device: the device of this process; if it is a GPU, the one with the local rank is used.
        timeout: seconds after which a process stops waiting for another one.

    Raises:
        ConfigError: there are more processes on this machine than GPUs.
        TrainingError: the other processes cannot be reached.
    """
    if not is_launched() or dist.is_initialized():
        return
    backend = "gloo"
    if device.type == "cuda":
        gpu = int(os.environ.get("LOCAL_RANK", "0"))
        visible = torch.cuda.device_count()
        if gpu >= visible:
            raise ConfigError(
                f"process {gpu} of this machine has no GPU: only {visible} visible; start at most {visible}"
            )
        torch.cuda.set_device(gpu)
        backend = "cpu:gloo,cuda:nccl"
    try:
        _connect(backend, timedelta(seconds=timeout))
    except RuntimeError as error:
        number, size, host, port = map(os.environ.get, ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        raise TrainingError(
            f"rank {number} of {size} could not reach the others at {host}:{port} "
            f"({str(error).splitlines()[0]}): check that all of them run and can reach this address; if they "
            "are only slow, increase process_group_timeout"
        ) from error
    atexit.register(leave)
    if is_main_process() and _cannot_replace_a_machine():
        logger.warning(
            "this launcher cannot replace a lost machine (pytorch/pytorch#135712); torchrun can, with "
            "--rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set on all machines"
        )


def _connect(backend: str, timeout: timedelta) -> None:
    store, number, size = next(rendezvous("env://", timeout=timeout))
    if _is_launchers_store():
        # This store survives a restart, with the addresses of processes that no longer exist.
        store = PrefixStore(f"palm/{_restarts()}/{size}", store)
    dist.init_process_group(backend, timeout=timeout, world_size=size, rank=number, store=store)
    roll_call_group()


def _is_launchers_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _cannot_replace_a_machine() -> bool:
    names = ("TORCHELASTIC_MAX_RESTARTS", "GROUP_WORLD_SIZE")
    restarts, machines = (int(os.environ.get(name, "0")) for name in names)
    return restarts > 0 and machines > 1 and _is_launchers_store()


def leave() -> None:
    """Leave the process group at the end of the program."""
    # A thread of gloo releases a tensor after its exchange and needs Python's lock (GIL) for that. A thread
    # that requests the lock while Python is shutting down aborts the process (exit code -6).
    time.sleep(LEAVE_DELAY)
    dist.destroy_process_group()


@functools.cache
def roll_call_group() -> dist.ProcessGroup:
    """Return a second group of all ranks, whose connections still work after a failed exchange."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Check whether this is rank 0, the process that logs and writes files."""
    return rank() == 0


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the sum over all ranks as a new tensor; with one rank, `value` itself."""
    if world_size() == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def barrier() -> None:
    """Wait until all ranks have called this."""
    if world_size() > 1:
        all_reduce_sum(torch.zeros(()))


def broadcast(make: Callable[[], T], meanwhile: Callable[[], object] | None = None) -> T:
    """Compute a value on rank 0 and return it on every rank.

    Args:
        make: called on rank 0; its result is pickled for the others.
        meanwhile: called on the other ranks, if `make` needs them.

    Raises:
        PalmError: from `make`; without `meanwhile`, on every rank, which would otherwise fail while waiting.
    """
    if world_size() == 1:
        return make()
    box: list[T | PalmError | None] = [None]
    try:
        if is_main_process():
            box = [make()]
        elif meanwhile is not None:
            meanwhile()
    except PalmError as error:
        if meanwhile is not None:
            raise
        box = [error]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], PalmError):
        raise box[0]
    return box[0]  # type: ignore[return-value]


def exhaust(items: Iterable[object]) -> None:
    """Consume an iterable for its side effects."""
    deque(items, maxlen=0)


def gather_objects(value: T) -> list[T]:
    """Return the values of all ranks, in order, on rank 0, and [] on other ranks."""
    if world_size() == 1:
        return [value]
    values: list[T] | None = [value] * world_size() if is_main_process() else None
    dist.gather_object(value, values, dst=0)
    return values or []


def all_rows(value: Tensor) -> Tensor:
    """Concatenate the rows of all ranks, in order, padded with zeros to the same number of columns.

    Every rank computes the same loss of all rows, but only its own rows are in the graph, with a factor that
    makes the gradient, averaged over ranks, that of the mean over all rows.
    """
    if world_size() == 1:
        return value
    own = torch.tensor(value.shape)  # on the CPU, because reading sizes from a GPU would wait for it
    gathered = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(gathered, own)
    shapes = torch.stack(gathered).tolist()
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    missing = [(0, whole - size) for whole, size in zip(largest, value.shape, strict=True)]
    padded = F.pad(value, [side for pair in reversed(missing) for side in pair])
    parts = [torch.empty_like(padded) for _ in shapes]
    dist.all_gather(parts, padded.detach())
    if value.requires_grad:
        # `scaled` minus itself changes no value, but its gradient has the factor.
        scaled = sum(shape[0] for shape in shapes) / len(value) * padded
        parts[rank()] = padded.detach() + scaled - scaled.detach()
    return torch.cat([part[: shape[0]] for part, shape in zip(parts, shapes, strict=True)])


def split_among_ranks(items: Sequence[T]) -> list[T]:
    """Return this rank's share of a sequence that is distributed round-robin.

    All ranks get the same number of items, because a sharded model must be called equally often on each rank;
    in an incomplete last round, several ranks get the last item.
    """
    rounds = -(-len(items) // world_size())
    mine = (turn * world_size() + rank() for turn in range(rounds))
    return [items[min(number, len(items) - 1)] for number in mine]
