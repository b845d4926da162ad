"""A check that weights are finite, made before they are saved."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from palm.core.differences import shortened
from palm.core.errors import TrainingError
from palm.parallel.group import all_reduce_sum
from palm.parallel.shards import local_shard


def check_finite(tensors: Mapping[str, Tensor], place: str) -> None:
    """Raise an error unless all values are finite on all ranks, which must call this together.

    This takes one maximum per tensor and waits for a GPU once.

    Args:
        tensors: name -> tensor of any shape; integer tensors are ignored.
        place: a description of the tensors and the time, for the message.

    Raises:
        TrainingError: some values are not finite; their tensors are named.
    """
    floats = {name: value.detach() for name, value in tensors.items() if value.is_floating_point()}
    # If a small tensor is sharded, some ranks have no part of it.
    parts = [part if (part := local_shard(value)).numel() else part.new_zeros(1) for value in floats.values()]
    if not parts:
        return
    # The infinity norm, because squares of large finite values would overflow.
    largest = torch._foreach_norm(parts, ord=float("inf"))
    not_finite = ~torch.stack([value.to(largest[0].device, torch.float) for value in largest]).isfinite()
    counts = all_reduce_sum(not_finite.float().cpu()).tolist()
    if names := [name for name, count in zip(floats, counts, strict=True) if count]:
        raise TrainingError(
            f"{place} has infinite or NaN values in {', '.join(shortened(names, 3))}; it was not saved. "
            "The last updates were too large: try a lower learning_rate, warmup_proportion above 0, or a "
            "smaller grad_clip"
        )
