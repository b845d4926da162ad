"""The memory of a GPU that is used up: what takes how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from palm.core.errors import ResourceError
from palm.core.limits import LESS_OF_A_GPU
from palm.core.tensor_specs import Tensors
from palm.distributed.shards import local_shard


def out_of_memory(
    place: str, batches: Sequence[Tensors], optimizer: torch.optim.Optimizer, error: BaseException
) -> ResourceError:
    """Describe what a step that did not fit had in memory, and what takes less.

    Args:
        place: the tasks of the step, and where in the run it is.
        batches: the step's.
        optimizer: with its parameters, and the state that it has by now.
        error: torch's.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    states = (value for state in optimizer.state.values() for value in state.values())
    sizes = {
        "weights that are trained": _size(parameters),
        "gradients": _size(each.grad for each in parameters),
        "the optimizer": _size(states),
    }
    shapes = (next(value for value in batch.values() if value.ndim > 1).shape for batch in batches)
    rows = ", ".join(f"{shape[0]} rows of up to {shape[1]} tokens" for shape in shapes)
    taken = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())
    reason = str(error).split("\n")[0][:200]
    return ResourceError(
        f"{place}: the memory of the GPU does not suffice for a step on {rows} ({reason}). "
        f"Taken so far: {taken}; the rest is what the step computes. {LESS_OF_A_GPU}"
    )


def _size(values: Iterable[object]) -> int:
    return sum(local_shard(value).nbytes for value in values if isinstance(value, Tensor))
