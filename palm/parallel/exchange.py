"""Exchange of gradients between ranks that have all parameters, during the backward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from palm.parallel.group import all_reduce_sum, world_size

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
