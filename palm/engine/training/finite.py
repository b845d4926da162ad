"""A check that weights are finite, made once before they are saved."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from palm.core.differences import shortened
from palm.core.errors import TrainingError
from palm.distributed.group import all_reduce_sum
from palm.distributed.shards import local_shard


def check_finite(tensors: Mapping[str, Tensor], place: str) -> None:
    """Raise unless all numbers are finite, on any rank; all ranks must call it together.

    One maximum over each tensor, one wait for a GPU altogether.

    Args:
        tensors: by name, of any shape; integers are passed over.
        place: what they are and when, for the message.

    Raises:
        TrainingError: some are not; names them.
    """
    floats = {name: value.detach() for name, value in tensors.items() if value.is_floating_point()}
    # Of a small tensor that is cut up, some ranks have nothing.
    parts = [part if (part := local_shard(value)).numel() else part.new_zeros(1) for value in floats.values()]
    if not parts:
        return
    # The largest magnitude, not the usual norm: squares of large finite numbers would overflow.
    largest = torch._foreach_norm(parts, ord=float("inf"))
    spoiled = ~torch.stack([value.to(largest[0].device, torch.float) for value in largest]).isfinite()
    counts = all_reduce_sum(spoiled.float().cpu()).tolist()
    if names := [name for name, count in zip(floats, counts, strict=True) if count]:
        raise TrainingError(
            f"{place} has infinities, or what is not a number, in {', '.join(shortened(names, 3))}; nothing "
            "of it was saved. The last updates were too large: try a lower learning_rate, "
            "warmup_proportion above 0, or a smaller grad_clip"
        )
