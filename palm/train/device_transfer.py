"""Transfer of tensors between the host and the device that computes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from palm.backbone.base import Backbone
from palm.backbone.packing import POSITIONS, layout_of
from palm.core.tensor_specs import Tensors, as_declared

Place = Callable[[Tensors, torch.device, Backbone], Tensors]
"""A function such as `placed`, which moves a batch to a device for a backbone."""


def prepared(batch: Tensors, device: torch.device, backbone: Backbone) -> Tensors:
    """Prepare a batch for its transfer: for a GPU, add the layout of its tokens and pin its memory.

    Args:
        batch: the batch, on the CPU.
        device: the target device.
        backbone: the encoder of the batch; only packed encoders get the layout.
    """
    if device.type != "cuda" or POSITIONS in batch:
        return batch
    mask = as_declared(batch, backbone.inputs_attr).get("input_mask") if backbone.is_packed else None
    with_layout = batch if mask is None else {**batch, **layout_of(mask)}
    # Copies to a GPU are asynchronous only from pinned memory.
    return {name: value.pin_memory() for name, value in with_layout.items()}


def placed(batch: Tensors, device: torch.device, backbone: Backbone) -> Tensors:
    """Move a batch, prepared or not, to a device; the host does not wait for a GPU.

    Args:
        batch: the batch, on the CPU.
        device: the target device.
        backbone: the encoder of the batch.
    """
    ready = prepared(batch, device, backbone)
    return {name: value.to(device, non_blocking=device.type == "cuda") for name, value in ready.items()}


def fetched(tensors: Tensors) -> Callable[[], Tensors]:
    """Start copying tensors to the host.

    Returns:
        A function that returns them; it waits for the copies, but not for work that was queued later.
    """
    if not any(value.is_cuda for value in tensors.values()):
        return lambda: tensors
    host = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in tensors.items()}
    for name, value in tensors.items():
        host[name].copy_(value, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> Tensors:
        copied.synchronize()
        return host

    return read
