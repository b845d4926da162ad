"""Batches on their way to where they are computed."""

from __future__ import annotations

import torch

from palm.backbone.packing import layout_of
from palm.core.contract import Tensors


def placed(batch: Tensors, device: torch.device) -> Tensors:
    """A batch on a device; on a GPU, with the layout of its tokens, and without making the host wait.

    Args:
        batch: on the CPU.
        device: where it is computed.
    """
    if device.type != "cuda":
        return {name: value.to(device) for name, value in batch.items()}
    with_layout = {**batch, **(layout_of(batch["input_mask"]) if "input_mask" in batch else {})}
    # Only from pinned memory is a copy made while the host goes on.
    return {name: value.pin_memory().to(device, non_blocking=True) for name, value in with_layout.items()}
