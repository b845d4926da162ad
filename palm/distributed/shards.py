"""Tensors whose parts lie on several ranks, and the same tensors whole, as files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from palm.distributed.group import is_first

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def full_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors put together from the parts of all ranks, which must all ask; others as they are.

    Parts are put together one tensor at a time, and only the first rank keeps the whole, in the memory of its
    host: no device need have room for more than one of them.
    """
    whole = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if full is tensor:
            whole[name] = tensor
        elif is_first():
            # To the host at once: the next tensor needs the room on the device.
            whole[name] = full.cpu()
    return whole


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor put together from the parts of all ranks, which must all ask; another as it is."""
    return tensor.full_tensor() if _is_cut(tensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory."""
    return tensor.to_local() if _is_cut(tensor) else tensor


def shard_like(pattern: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor on the device of `pattern`, and cut up as that is."""
    if not _is_cut(pattern):
        return tensor.to(pattern.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(pattern.device), pattern.device_mesh, pattern.placements)


def _is_cut(tensor: Tensor) -> TypeIs[DTensor]:
    # Importing DTensor, to ask with isinstance, takes a second.
    return hasattr(tensor, "full_tensor")
