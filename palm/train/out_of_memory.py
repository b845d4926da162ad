"""The error for a GPU that is out of memory, with what uses how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from palm.core.errors import ResourceError
from palm.core.limits import LESS_OF_A_GPU
from palm.core.tensor_specs import Tensors
from palm.parallel.shards import local_shard


def out_of_memory(
    place: str, batches: Sequence[Tensors], optimizer: torch.optim.Optimizer, error: BaseException
) -> ResourceError:
    """Describe what was in memory when a step did not fit, and how to use less.

    Args:
        place: the tasks of the step and its position in the run.
        batches: the batches of the step.
        optimizer: the optimizer, with its parameters and its current state.
        error: the error that torch raised.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    states = (value for state in optimizer.state.values() for value in state.values())
    sizes = {
        "trained weights": _size(parameters),
        "gradients": _size(each.grad for each in parameters),
        "optimizer state": _size(states),
    }
    shapes = (next(value for value in batch.values() if value.ndim > 1).shape for batch in batches)
    rows = ", ".join(f"{shape[0]} rows of up to {shape[1]} tokens" for shape in shapes)
    taken = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())
    reason = str(error).split("\n")[0][:200]
    return ResourceError(
        f"{place}: the GPU has too little memory for a step on {rows} ({reason}). "
        f"In use: {taken}; the rest is activations of the step. {LESS_OF_A_GPU}"
    )


def _size(values: Iterable[object]) -> int:
    return sum(local_shard(value).nbytes for value in values if isinstance(value, Tensor))
