"""One optimizer step on the batches of one or several tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from palm.balance import Balance
from palm.core.tensor_specs import Tensors
from palm.distributed.group import all_reduce_sum
from palm.distributed.replica import Replica
from palm.distributed.shards import local_shard
from palm.optimizer import Optimizer, clip

Update = Callable[[Mapping[str, Tensor]], Sequence[float] | None]
"""Makes the optimizer's step if the values, by their names in messages, are finite; gives them, if read."""


@dataclass(frozen=True)
class TaskBatches:
    """The batches of one task in a step.

    Args:
        task: its name.
        parts: batches with targets, on the model's device, and the factor of each in the task's loss; see
            `Replica.loss_factors`. More than one where gradients are accumulated.
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
    balance: Balance | None = None,
    draws: np.random.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Update the encoder and the heads of some tasks on the sum of their losses, or as `balance` weighs them.

    Args:
        replica: of a model in training mode.
        drawn: the tasks of the step; `balance` weighs two or more.
        optimizer: parameters without a gradient do not move: no decay, no momentum.
        update: makes the optimizer's step.
        clipping: has `grad_clip` and `grad_clip_type`.
        balance: weighs the tasks against each other; None adds up their losses.
        draws: source of the random numbers that `balance` needs.

    Returns:
        The losses of all ranks' rows before the update, without their weights, detached, [tasks]; and the
        norm of the gradient before clipping.

    Raises:
        FloatingPointError: a loss or the gradient is not finite; nothing was updated.
    """
    optimizer.zero_grad(set_to_none=True)
    names = [each.task for each in drawn]
    if balance is not None and balance.needs_gradients:
        assert draws is not None
        losses = balanced_gradients(replica, drawn, lambda gram: balance.of_gradients(names, gram, draws))
    else:
        factors = [1.0] * len(drawn) if balance is None else balance.of_losses(names)
        weighted = [replace(each, weight=each.weight * f) for each, f in zip(drawn, factors, strict=True)]
        losses = sum_of_losses(replica, weighted)
    norm = clip(replica.parameters, clipping.grad_clip, clipping.grad_clip_type)
    titles = ["loss"] if len(drawn) == 1 else [f"loss of task {name!r}" for name in names]
    values = update({**dict(zip(titles, losses, strict=True)), "gradient's norm": norm})
    if balance is not None and values is not None:  # read at once, for a balance that follows losses
        balance.observe(names, values[:-1])
    return losses, norm


def sum_of_losses(replica: Replica, drawn: Sequence[TaskBatches]) -> Tensor:
    """Give the parameters the gradient of the weighted sum of the tasks' losses.

    The first batches of all tasks go through the encoder together, then the second ones of those that
    have more, and so on.

    Returns:
        The detached losses of all ranks' rows, without their weights, [tasks].
    """
    rounds = list(zip_longest(*(each.parts for each in drawn)))
    totals: list[list[Tensor]] = [[] for _ in drawn]
    for number, parts in enumerate(rounds, start=1):
        here = [(own, *part) for own, part in enumerate(parts) if part is not None]
        with replica.exchanging([each.task for each in drawn], is_last=number == len(rounds)):
            losses = replica.losses([drawn[own].task for own, _, _ in here], [batch for _, batch, _ in here])
            weighted = []
            for loss, (own, _, factor) in zip(losses.unbind(), here, strict=True):
                # Where no row of a batch has a label, the mean of nothing is no number. It stays in the
                # graph, because other ranks may have labels, and all of them exchange gradients.
                scaled = (loss if factor else loss.nan_to_num()) * factor
                weighted.append(scaled * drawn[own].weight)
                totals[own].append(scaled.detach())
            torch.stack(weighted).sum().backward()  # type: ignore[no-untyped-call]
    return replica.mean(torch.stack([torch.stack(own).sum() for own in totals]))


def balanced_gradients(
    replica: Replica, drawn: Sequence[TaskBatches], factors: Callable[[Tensor], Sequence[float]]
) -> Tensor:
    """Give the parameters the sum of the tasks' gradients, each with its factor by their Gramian.

    Every task has a forward and a backward pass of its own, which together compute no more than one pass of
    all rows: a backward pass per task through a joint pass would go through all rows each time. Parameters
    that only one of the tasks has, such as heads, keep its gradient as it is.

    Args:
        replica: of a model in training mode.
        drawn: the tasks of the step.
        factors: the Gramian of the tasks' gradients, float64[tasks, tasks], -> a factor for each gradient.

    Returns:
        As `sum_of_losses`.
    """
    losses = []
    gradients = []
    for each in drawn:
        losses.append(sum_of_losses(replica, [each]))
        gradients.append(taken_gradients(replica))
    by_parameter = list(zip(*gradients, strict=True))
    # Only what two tasks or more have a gradient for can be in conflict.
    shared = [k for k, own in enumerate(by_parameter) if sum(grad is not None for grad in own) > 1]
    weights = factors(gramian([[own[k] for k in shared] for own in gradients]))
    for k in shared:
        # In place: nobody else has these gradients, and stacking them took a third of a short step.
        for grad, weight in zip(by_parameter[k], weights, strict=True):
            if grad is not None:
                grad.mul_(weight)
    for parameter, own in zip(replica.parameters, by_parameter, strict=True):
        present = [grad for grad in own if grad is not None]
        parameter.grad = present[0] if present else None
        for other in present[1:]:
            present[0].add_(other)
    return torch.cat(losses)


def taken_gradients(replica: Replica) -> list[Tensor | None]:
    """Take the gradients away from a model's parameters."""
    taken = [parameter.grad for parameter in replica.parameters]
    for parameter in replica.parameters:
        parameter.grad = None
    return taken


def gramian(gradients: Sequence[Sequence[Tensor | None]]) -> Tensor:
    """Compute the dot products of the tasks' gradients, float64[tasks, tasks], on the CPU.

    Args:
        gradients: per task those of the same parameters, averaged over ranks; None counts as zeros.
    """
    count = len(gradients)
    is_cut = any(g is not None and local_shard(g) is not g for own in gradients for g in own)
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
                # Parameters' parts differ by orders of magnitude, so that they are added in float64.
                sums[i, j] = torch.stack(dots).double().sum()
    # A GPU is waited for, so all are read at once.
    values = torch.stack(list(sums.values())).tolist() if sums else []
    for (i, j), value in zip(sums, values, strict=True):
        products[i, j] = products[j, i] = value
    return all_reduce_sum(products) if is_cut else products
