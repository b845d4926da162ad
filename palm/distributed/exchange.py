"""Gradients on their way between ranks that have all parameters, while backward still computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from palm.distributed.group import all_reduce_sum, num_ranks

BUCKET_BYTES = 25 * 2**20
"""Of gradients that travel together, as in torch's `DistributedDataParallel`."""

REMEMBERED = 1000
"""Sets of tasks whose parameters are kept in mind."""

Bucket = list[nn.Parameter]


class GradientExchange:
    """Averages gradients over all ranks; a parameter that no rank used keeps none.

    Which parameters a step uses depends on its tasks. A bucket holds some of those that the last step of the
    same tasks used, and travels as soon as it is full. After the backward pass the ranks tell one another
    what they really used, from host to host: torch's own class reads that from the device, and waits for it,
    wherever a head rests.

    Args:
        model: at the first step, when it is settled which parameters are frozen; it begins as rank 0's.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers())
        # Backward reaches the last parameters first.
        self._parameters = [each for each in model.parameters() if each.requires_grad][::-1]
        _take_first([*(each.detach() for each in model.parameters()), *self._buffers])
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
        self._used: dict[tuple[str, ...], list[bool]] = {}
        self._coming: deque[Bucket] = deque()
        self._missing: set[Tensor] = set()
        self._sent: list[dist.Work] = []

    @contextmanager
    def during(self, tasks: tuple[str, ...]) -> Iterator[None]:
        """Within it, the last forward and backward of a step of these tasks; then gradients are averages."""
        _take_first(self._buffers)  # such as running means of an encoder of the user's
        expected = self._used.get(tasks, [False] * len(self._parameters))
        self._coming = deque(self._buckets(expected))
        self._missing = {parameter for bucket in self._coming for parameter in bucket}
        yield
        # Only now is it known which parameters were used. Those that the last step of these tasks did not use
        # were in no bucket, and travel after the others.
        here = torch.tensor([parameter.grad is not None for parameter in self._parameters]).int()
        self._missing.clear()
        self._send_full()
        used = all_reduce_sum(here).bool().tolist()
        late = [now and not before for now, before in zip(used, expected, strict=True)]
        self._coming = deque(self._buckets(late))
        self._send_full()
        while self._sent:
            self._sent.pop().wait()
        for parameter, anywhere in zip(self._parameters, used, strict=True):
            if not anywhere:
                parameter.grad = None
        if len(self._used) >= REMEMBERED:
            self._used.clear()
        self._used[tasks] = used

    def _buckets(self, chosen: Sequence[bool]) -> list[Bucket]:
        """Put the chosen parameters into buckets of one dtype each, the same on every rank."""
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

    def _arrived(self, parameter: Tensor) -> None:
        if parameter in self._missing:
            self._missing.remove(parameter)
            self._send_full()

    def _send_full(self) -> None:
        """Send the next buckets that are full; in their order, because every rank must send the same."""
        while self._coming and self._missing.isdisjoint(self._coming[0]):
            bucket = self._coming.popleft()
            # Zeros where this rank did not use a parameter: another rank may have used it, and an exchange
            # needs the same numbers of all.
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            flat = torch.cat([part.flatten() for part in parts]).mul_(1 / num_ranks())
            self._sent.append(dist.all_reduce(flat, async_op=True))
            averages = torch.split(flat, [each.numel() for each in bucket])
            for each, average in zip(bucket, averages, strict=True):
                each.grad = average.view_as(each)


def _take_first(tensors: list[Tensor]) -> None:
    """Give every rank the tensors of rank 0, in as few exchanges as `DistributedDataParallel` takes."""
    if tensors:
        dist._broadcast_coalesced(dist.group.WORLD, tensors, BUCKET_BYTES, 0)  # type: ignore[attr-defined,arg-type]
