"""Tensors on their way to the device that computes them, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch

from palm.backbone.base import Backbone
from palm.backbone.packing import POSITIONS, layout_of
from palm.core.tensor_specs import Tensors, as_declared

Place = Callable[[Tensors, torch.device, Backbone], Tensors]
"""Sends a batch to a device, for a backbone, as `placed` does."""


def prepared(batch: Tensors, device: torch.device, backbone: Backbone) -> Tensors:
    """Make a batch ready to be sent: for a GPU, with the layout of its tokens, and in pinned memory.

    Args:
        batch: on the CPU.
        device: where it is computed.
        backbone: what it is computed by; one that is not packed gets no layout.
    """
    if device.type != "cuda" or POSITIONS in batch:
        return batch
    mask = as_declared(batch, backbone.inputs_attr).get("input_mask") if backbone.is_packed else None
    with_layout = batch if mask is None else {**batch, **layout_of(mask)}
    # Only from pinned memory is a copy made while the host goes on.
    return {name: value.pin_memory() for name, value in with_layout.items()}


def placed(batch: Tensors, device: torch.device, backbone: Backbone) -> Tensors:
    """Send a batch to a device, prepared or not; the host does not wait for a GPU.

    Args:
        batch: on the CPU.
        device: where it is computed.
        backbone: what it is computed by.
    """
    ready = prepared(batch, device, backbone)
    return {name: value.to(device, non_blocking=device.type == "cuda") for name, value in ready.items()}


def fetched(tensors: Tensors) -> Callable[[], Tensors]:
    """Begin to copy tensors to the host.

    Returns:
        A function that returns them; it waits for the copies, and for no work that was queued later.
    """
    if not any(value.is_cuda for value in tensors.values()):
        return lambda: tensors
    host = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in tensors.items()}
    for name, value in tensors.items():
        host[name].copy_(value, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> Tensors:
        arrived.synchronize()
        return host

    return read
