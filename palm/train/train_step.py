"""One optimizer step on the batches of one or several tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from palm.core.tensor_specs import Tensors
from palm.mixing.balance import Balance
from palm.optimizer import Optimizer, clip
from palm.parallel.group import all_reduce_sum
from palm.parallel.replica import Replica
from palm.parallel.shards import local_shard

Update = Callable[[Mapping[str, Tensor]], Sequence[float] | None]
"""Makes the optimizer's step if the named scalars are finite; returns their values if they were read."""


@dataclass(frozen=True)
class TaskBatches:
    """The batches of one task in a step.

    Args:
        task: its name.
        parts: batches with targets, on the model's device, each with its factor in the task's loss (see
            `Replica.loss_factors`); several if gradients are accumulated.
        weight: factor of the task's loss in the gradient.
    """

    task: str
    parts: Sequence[tuple[Tensors, float]]
    weight: float = 1.0


def train_step(
    replica: Replica,
    drawn: Sequence[TaskBatches],
    optimizer: torch.optim.Optimizer,
    update: Update,
    *,
    clipping: Optimizer,
    balance: Balance | None,
    draws: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Update the encoder and the heads of the drawn tasks on the sum of their losses, weighted by `balance`.

    Args:
        replica: a model in training mode.
        drawn: the tasks of the step; two or more with `balance`.
        optimizer: the optimizer; it does not change parameters without a gradient, not even by decay.
        update: makes the optimizer's step.
        clipping: the settings `grad_clip` and `grad_clip_type`.
        balance: weights the tasks against each other; None: their losses are summed.
        draws: source of the random numbers that `balance` needs.

    Returns:
        The losses of all ranks' rows before the update, detached and not weighted, [tasks]; and the norm of
        the gradient before clipping.

    Raises:
        TrainingError: a loss or the gradient is not finite; nothing was updated.
    """
    optimizer.zero_grad(set_to_none=True)
    names = [each.task for each in drawn]
    if balance is not None and balance.needs_gradients:
        losses = balanced_gradients(replica, drawn, lambda gram: balance.of_gradients(names, gram, draws))
    else:
        factors = [1.0] * len(drawn) if balance is None else balance.of_losses(names)
        weighted = [replace(each, weight=each.weight * f) for each, f in zip(drawn, factors, strict=True)]
        losses = sum_of_losses(replica, weighted)
    norm = clip(replica.parameters, clipping.grad_clip, clipping.grad_clip_type)
    titles = ["loss"] if len(drawn) == 1 else [f"loss of task {name!r}" for name in names]
    values = update({**dict(zip(titles, losses, strict=True)), "gradient's norm": norm})
    if balance is not None and values is not None:  # always read for a balance that follows losses
        balance.observe(names, values[:-1])
    return losses, norm


def sum_of_losses(replica: Replica, drawn: Sequence[TaskBatches]) -> Tensor:
    """Compute the gradient of the weighted sum of the tasks' losses.

    The first batches of all tasks are encoded together, then the second ones of tasks that have more, and so
    on.

    Returns:
        The losses of all ranks' rows, detached and not weighted, [tasks].
    """
    rounds = list(zip_longest(*(each.parts for each in drawn)))
    totals: list[list[Tensor]] = [[] for _ in drawn]
    for number, parts in enumerate(rounds, start=1):
        here = [(own, *part) for own, part in enumerate(parts) if part is not None]
        with replica.exchanging([each.task for each in drawn], is_last=number == len(rounds)):
            losses = replica.losses([drawn[own].task for own, _, _ in here], [batch for _, batch, _ in here])
            weighted = []
            for loss, (own, _, factor) in zip(losses.unbind(), here, strict=True):
                # The loss of a batch without any label is NaN. It stays in the graph, because other ranks may
                # have labels, and all of them exchange gradients.
                scaled = (loss if factor else loss.nan_to_num()) * factor
                weighted.append(scaled * drawn[own].weight)
                totals[own].append(scaled.detach())
            torch.stack(weighted).sum().backward()  # type: ignore[no-untyped-call]
    return replica.mean(torch.stack([torch.stack(own).sum() for own in totals]))


def balanced_gradients(
    replica: Replica, drawn: Sequence[TaskBatches], factors: Callable[[Tensor], Sequence[float]]
) -> Tensor:
    """Compute the sum of the tasks' gradients, each with a factor that depends on their Gramian.

    Every task has its own forward and backward pass. Together they cost no more than one pass of all rows,
    whereas a backward pass per task through a joint pass would process all rows each time. Parameters that
    only one task has, such as heads, keep its gradient unchanged.

    Args:
        replica: a model in training mode.
        drawn: the tasks of the step.
        factors: Gramian of the tasks' gradients, float64[tasks, tasks] -> a factor for each gradient.

    Returns:
        The same as `sum_of_losses`.
    """
    losses = []
    gradients = []
    for each in drawn:
        losses.append(sum_of_losses(replica, [each]))
        gradients.append(pop_gradients(replica))
    by_parameter = list(zip(*gradients, strict=True))
    # Only parameters with gradients of several tasks can have a conflict.
    shared = [k for k, own in enumerate(by_parameter) if sum(grad is not None for grad in own) > 1]
    weights = factors(gramian([[own[k] for k in shared] for own in gradients]))
    for k in shared:
        # In place, because stacking the gradients took a third of a short step.
        for grad, weight in zip(by_parameter[k], weights, strict=True):
            if grad is not None:
                grad.mul_(weight)
    for parameter, own in zip(replica.parameters, by_parameter, strict=True):
        present = [grad for grad in own if grad is not None]
        parameter.grad = present[0] if present else None
        for other in present[1:]:
            present[0].add_(other)
    return torch.cat(losses)


def pop_gradients(replica: Replica) -> list[Tensor | None]:
    """Return the gradients of a model's parameters, and set them to None."""
    taken = [parameter.grad for parameter in replica.parameters]
    for parameter in replica.parameters:
        parameter.grad = None
    return taken


def gramian(gradients: Sequence[Sequence[Tensor | None]]) -> Tensor:
    """Compute the dot products of the tasks' gradients, float64[tasks, tasks], on the CPU.

    Args:
        gradients: per task, the gradients of the same parameters, averaged over ranks; None counts as zero.
    """
    count = len(gradients)
    is_sharded = any(g is not None and local_shard(g) is not g for own in gradients for g in own)
    products = torch.zeros(count, count, dtype=torch.float64)
    sums: dict[tuple[int, int], Tensor] = {}
    for i in range(count):
        for j in range(i + 1):
            dots = [
                torch.dot(local_shard(one).flatten(), local_shard(other).flatten())
                for one, other in zip(gradients[i], gradients[j], strict=True)
                if one is not None and other is not None
            ]
            if dots:
                # The parameters' parts differ by orders of magnitude, so they are added in float64.
                sums[i, j] = torch.stack(dots).double().sum()
    # Reading waits for a GPU, so all values are read at once.
    values = torch.stack(list(sums.values())).tolist() if sums else []
    for (i, j), value in zip(sums, values, strict=True):
        products[i, j] = products[j, i] = value
    return all_reduce_sum(products) if is_sharded else products
