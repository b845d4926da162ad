"""Batches on their way to where they are computed."""

from __future__ import annotations

import torch

from palm.backbone.packing import POSITIONS, layout_of
from palm.core.tensor_specs import Tensors


def prepared(batch: Tensors, device: torch.device) -> Tensors:
    """A batch ready to be sent: for a GPU, with the layout of its tokens, and in pinned memory.

    Args:
        batch: on the CPU.
        device: where it is computed.
    """
    if device.type != "cuda" or POSITIONS in batch:
        return batch
    with_layout = {**batch, **(layout_of(batch["input_mask"]) if "input_mask" in batch else {})}
    # Only from pinned memory is a copy made while the host goes on.
    return {name: value.pin_memory() for name, value in with_layout.items()}


def placed(batch: Tensors, device: torch.device) -> Tensors:
    """A batch on a device, prepared or not; the host does not wait for a GPU.

    Args:
        batch: on the CPU.
        device: where it is computed.
    """
    on_gpu = device.type == "cuda"
    return {name: value.to(device, non_blocking=on_gpu) for name, value in prepared(batch, device).items()}
