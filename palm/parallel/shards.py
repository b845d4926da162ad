"""Conversion between tensors that are sharded over ranks and full tensors, as in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from palm.parallel.group import is_main_process

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def full_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather sharded tensors from all ranks, which must all call this; other tensors are returned unchanged.

    Tensors are gathered one at a time, and only rank 0 keeps them, in host memory, so a device never holds
    more than one full tensor. On other ranks the result lacks sharded tensors.
    """
    whole = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if full is tensor:
            whole[name] = tensor
        elif is_main_process():
            # Moved to the host immediately, to free memory on the device for the next tensor.
            whole[name] = full.cpu()
    return whole


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor from all ranks, which must all call this; return another one as it is."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, without a copy."""
    return tensor.to_local() if _is_sharded(tensor) else tensor


def shard_like(pattern: Tensor, tensor: Tensor) -> Tensor:
    """Move a full tensor to the device of `pattern`, and shard it in the same way."""
    if not _is_sharded(pattern):
        return tensor.to(pattern.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(pattern.device), pattern.device_mesh, pattern.placements)


def _is_sharded(tensor: Tensor) -> TypeIs[DTensor]:
    # Not `isinstance`, because importing DTensor takes a second.
    return hasattr(tensor, "full_tensor")
