"""Whether numbers are still numbers, asked once before they are saved."""

from __future__ import annotations

import torch
from torch import Tensor

from palm.distributed import all_reduce_sum, local_shard

SHOWN = 3
"""How many names a message has."""


def not_finite(tensors: dict[str, Tensor]) -> list[str]:
    """The names of tensors that hold an infinity or what is not a number, on any rank.

    All ranks must ask together. One maximum over each tensor, one wait for a GPU altogether.

    Args:
        tensors: by name, of any shape; integers are passed over.
    """
    floats = {name: value.detach() for name, value in tensors.items() if value.is_floating_point()}
    # Of a small tensor that is cut up, some ranks have nothing.
    parts = [part if (part := local_shard(value)).numel() else part.new_zeros(1) for value in floats.values()]
    if not parts:
        return []
    # The largest magnitude, not the usual norm: squares of large finite numbers would overflow.
    largest = torch._foreach_norm(parts, ord=float("inf"))
    spoiled = ~torch.stack([value.to(largest[0].device, torch.float) for value in largest]).isfinite()
    counts = all_reduce_sum(spoiled.float().cpu()).tolist()
    return [name for name, count in zip(floats, counts, strict=True) if count]


def in_words(names: list[str]) -> str:
    """The first of the names, and how many there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
