"""The processes of a run: how they start, and what they exchange."""

from __future__ import annotations

import atexit
import functools
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from palm.core.errors import ConfigError, PalmError, TrainingError
from palm.core.logging import logger
from palm.core.process import is_program, program

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
        raise TrainingError(
            f"rank {rank()} of {world_size()} timed out waiting for another rank {place} "
            f"({_message(error)}): {_missing_ranks()}. Check the messages of the missing ranks; if they are "
            "only slow, increase process_group_timeout"
        ) from None


def _missing_ranks() -> str:
    # Rank 0 gives up first, so its message is the first failure, which the launcher shows.
    patience = ROLL_CALL if is_main_process() else 2 * ROLL_CALL
    try:
        dist.monitored_barrier(roll_call_group(), timeout=patience, wait_all_ranks=True)
    except RuntimeError as unanswered:  # rank 0's names the ranks
        return _message(unanswered)
    return "all ranks respond now"


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


T = TypeVar("T")

DEFAULT_TIMEOUT = 1800.0
"""Seconds after which a process stops waiting for another one; the default of gloo."""

LEAVE_DELAY = 0.2
"""Seconds for gloo's threads to release their tensors; generous, because a busy machine may be slow."""


def is_launched() -> bool:
    """Check whether a launcher (`torchrun`) started this process as one of several."""
    return "RANK" in os.environ and launched_processes() > 1


def launched_processes() -> int:
    """Return the number of processes that the launcher of this one has started.

    Raises:
        ConfigError: it is not a number.
    """
    if (given := os.environ.get("WORLD_SIZE", "1")).isdecimal():
        return int(given)
    raise ConfigError(f"WORLD_SIZE should be a number of processes, as torchrun sets it, not {given!r}")


def _restarts() -> int:
    """Return the number of restarts by this machine's launcher; it is 0 on a machine that joined late."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


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


def _connect(backend: str, timeout: timedelta) -> None:
    store, number, size = next(rendezvous("env://", timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # This store survives a restart, with the addresses of processes that no longer exist.
        store = PrefixStore(f"palm/{_restarts()}/{size}", store)
    dist.init_process_group(backend, timeout=timeout, world_size=size, rank=number, store=store)
    roll_call_group()


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

    All ranks get the same number of items, so that they gather the results of several tasks in the same
    order; in an incomplete last round, several ranks get the last item.
    """
    rounds = -(-len(items) // world_size())
    mine = (turn * world_size() + rank() for turn in range(rounds))
    return [items[min(number, len(items) - 1)] for number in mine]


BUCKET_BYTES = 25 * 2**20
"""Size of a bucket of gradients, as in torch's `DistributedDataParallel`."""

MAX_TASK_SETS = 1000
"""Maximum number of sets of tasks whose used parameters are remembered."""

Bucket = list[nn.Parameter]


class GradientExchange:
    """Averages gradients over all ranks; a parameter that no rank used gets no gradient.

    The parameters that a step uses depend on its tasks. Buckets hold the parameters that the last step of the
    same tasks used, and each is sent as soon as it is full. After the backward pass the ranks exchange on the
    host which parameters were used; torch's own class reads that from the device, and waits for it, whenever
    a head is not used.

    Args:
        model: the model at the first step, when it is final which parameters are frozen; all ranks start with
            the weights of rank 0.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers())
        # The backward pass reaches the last parameters first.
        self._parameters = [each for each in model.parameters() if each.requires_grad][::-1]
        _broadcast([*(each.detach() for each in model.parameters()), *self._buffers])
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
        self._used: dict[tuple[str, ...], list[bool]] = {}
        self._unsent: deque[Bucket] = deque()
        self._missing: set[Tensor] = set()
        self._sent: list[dist.Work] = []

    @contextmanager
    def during(self, tasks: tuple[str, ...]) -> Iterator[None]:
        """Average the gradients of the context, which contains a step's last forward and backward pass."""
        _broadcast(self._buffers)  # such as running means in a user's encoder
        expected = self._used.get(tasks, [False] * len(self._parameters))
        self._unsent = deque(self._buckets(expected))
        self._missing = {parameter for bucket in self._unsent for parameter in bucket}
        yield
        # Now the used parameters are known. Those that the last step of these tasks did not use are in no
        # bucket, and are sent after the others.
        here = torch.tensor([parameter.grad is not None for parameter in self._parameters]).int()
        self._missing.clear()
        self._send_full()
        used = all_reduce_sum(here).bool().tolist()
        late = [now and not before for now, before in zip(used, expected, strict=True)]
        self._unsent = deque(self._buckets(late))
        self._send_full()
        while self._sent:
            self._sent.pop().wait()
        for parameter, anywhere in zip(self._parameters, used, strict=True):
            if not anywhere:
                parameter.grad = None
        if len(self._used) >= MAX_TASK_SETS:
            self._used.clear()
        self._used[tasks] = used

    def _buckets(self, chosen: Sequence[bool]) -> list[Bucket]:
        """Divide the chosen parameters into buckets of one dtype each, the same on every rank."""
        buckets: list[Bucket] = []
        room = 0
        for parameter, is_chosen in zip(self._parameters, chosen, strict=True):
            if not is_chosen:
                continue
            if not buckets or room < parameter.nbytes or buckets[-1][0].dtype != parameter.dtype:
                buckets.append([])
                room = BUCKET_BYTES
            buckets[-1].append(parameter)
            room -= parameter.nbytes
        return buckets

    def _on_gradient(self, parameter: Tensor) -> None:
        if parameter in self._missing:
            self._missing.remove(parameter)
            self._send_full()

    def _send_full(self) -> None:
        """Send the next full buckets, in order, because every rank must send the same sequence."""
        while self._unsent and self._missing.isdisjoint(self._unsent[0]):
            bucket = self._unsent.popleft()
            # Zeros for parameters that this rank did not use: another rank may have used them, and all ranks
            # must send the same shapes.
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            flat = torch.cat([part.flatten() for part in parts]).mul_(1 / world_size())
            self._sent.append(dist.all_reduce(flat, async_op=True))
            averages = torch.split(flat, [each.numel() for each in bucket])
            for each, average in zip(bucket, averages, strict=True):
                each.grad = average.view_as(each)


def _broadcast(tensors: list[Tensor]) -> None:
    """Copy the tensors of rank 0 to all ranks, in as few messages as `DistributedDataParallel`."""
    if tensors:
        dist._broadcast_coalesced(dist.group.WORLD, tensors, BUCKET_BYTES, 0)  # type: ignore[attr-defined,arg-type]


LAUNCHER = "PALM_LAUNCHER"
"""The environment variable with the PID of the process in which `launch` waits."""

SAVE_SECONDS = 30
"""Time between SIGTERM and the end of a process, the same as that of `torchrun`."""


MOST_ON_A_CORE = 8
"""Number of processes that a CPU may have even with fewer cores, for a trial of several devices."""


def launch(device: torch.device, num_devices: int | Literal["auto"]) -> None:
    """Restart the running program as one process per device, wait for them, and exit with their status.

    Does nothing if one device is used, or if a launcher has started this process.

    Args:
        device: the kind of device.
        num_devices: number of devices; 'auto': all visible GPUs, or one CPU.

    Raises:
        ConfigError: fewer GPUs are visible, or this is not a program that can be restarted.
        SystemExit: the processes have ended.
    """
    if is_launched():
        if LAUNCHER in os.environ and sys.platform != "win32":  # whose `getppid` names dead processes too
            _end_with(int(os.environ[LAUNCHER]))
        return
    count = count_devices(device, num_devices)
    if count == 1:
        return
    if not is_program():
        if num_devices == "auto":
            logger.info("%d GPUs are visible; using one, because the program is not in a file", count)
            return
        raise ConfigError(
            f"num_devices: {count} processes need a program in a file; save it and run "
            f"`python program.py`, or `torchrun --nproc-per-node {count} program.py`"
        )
    logger.info("%d devices: starting one process for each", count)
    if device.type == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    # Signals, including Slurm's, are passed on to the processes, which have half a minute to save.
    handled = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", handled)
    os.environ[LAUNCHER] = str(os.getpid())
    from torch.distributed.run import main as torchrun

    try:
        torchrun(["--standalone", f"--nproc-per-node={count}", *program(), *sys.argv[1:]])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        raise SystemExit(first.exitcode if first.exitcode > 0 else 1) from None
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    raise SystemExit(0)


@functools.cache
def _end_with(launcher: int) -> None:
    """End this process if its launcher dies without ending it, as the launcher would have done."""

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SAVE_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def count_devices(device: torch.device, num_devices: int | Literal["auto"]) -> int:
    """Return the number of processes, each with its own device; see `launch` for arguments and errors."""
    visible = torch.cuda.device_count()
    if num_devices == "auto":
        return visible if device.type == "cuda" else 1
    if num_devices < 1:
        raise ConfigError(f"num_devices should be 1 or more, or auto, not {num_devices!r}")
    if device.type == "cuda" and num_devices > visible:
        raise ConfigError(f"num_devices is {num_devices}, but only {visible} GPUs are visible")
    cores = os.cpu_count() or 1
    if device.type == "cpu" and num_devices > max(cores, MOST_ON_A_CORE):
        raise ConfigError(f"num_devices is {num_devices}, but the CPU has only {cores} cores")
    return num_devices
