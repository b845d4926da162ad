"""One update on the batches of several tasks: the sum of their losses, or of their gradients as balanced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from palm.core.tensor_specs import Tensors
from palm.distributed import Replica, all_reduce_sum, local_shard

Factors = Callable[[Tensor], Sequence[float]]
"""The Gramian of the tasks' gradients, float64[tasks, tasks], -> a factor for each gradient."""


@dataclass(frozen=True)
class Shared:
    """A task's part of a step.

    Args:
        task: its name.
        parts: batches with targets, on the model's device, and the share of each in its loss; see
            `Replica.shares`. More than one where gradients are accumulated.
        weight: factor of its loss in the gradient.
    """

    task: str
    parts: Sequence[tuple[Tensors, float]]
    weight: float


def sum_of_losses(replica: Replica, drawn: Sequence[Shared]) -> Tensor:
    """Give the parameters the gradient of the weighted sum of the tasks' losses.

    The first batches of all tasks go through the encoder together, then the second ones of those that
    have more, and so on.

    Returns:
        The detached losses of all ranks' rows, without their weights, [tasks].
    """
    rounds = list(zip_longest(*(each.parts for each in drawn)))
    totals = torch.zeros(len(drawn))
    for number, parts in enumerate(rounds, start=1):
        here = [k for k, part in enumerate(parts) if part is not None]
        with replica.exchanging(is_last=number == len(rounds)):
            losses = replica.losses([drawn[k].task for k in here], [parts[k][0] for k in here])
            shares = losses.new_tensor([parts[k][1] for k in here])
            # Where no row of a batch has a label, the mean of nothing is no number.
            losses = torch.where(shares > 0, losses, 0.0) * shares
            (losses * losses.new_tensor([drawn[k].weight for k in here])).sum().backward()  # type: ignore[no-untyped-call]
        totals = totals.to(losses.device).index_add(
            0, torch.tensor(here, device=losses.device), losses.detach()
        )
    return replica.mean(totals)


def balanced_gradients(replica: Replica, drawn: Sequence[Shared], factors: Factors) -> Tensor:
    """Give the parameters the sum of the tasks' gradients, each with its factor by their Gramian.

    Every task has a forward and a backward pass of its own, which together compute no more than one pass of
    all rows: a backward pass per task through a joint pass would go through all rows each time. Parameters
    that only one of the tasks has, such as heads, keep its gradient as it is.

    Returns:
        As `sum_of_losses`.
    """
    parameters = list(replica.parameters())
    losses, gradients = [], []
    for each in drawn:
        losses.append(sum_of_losses(replica, [each]))
        gradients.append(taken_gradients(replica))
    uses = [sum(found[k] is not None for found in gradients) for k in range(len(parameters))]
    shared = [k for k, count in enumerate(uses) if count > 1]
    weights = factors(gramian([[found[k] for k in shared] for found in gradients]))
    for k, parameter in enumerate(parameters):
        own = [(found[k], weight) for found, weight in zip(gradients, weights, strict=True)]
        present = [(grad, weight) for grad, weight in own if grad is not None]
        if uses[k] == 1:
            parameter.grad = present[0][0]
        elif present:
            # In place: nobody else has these gradients, and stacking them took a third of a short step.
            parameter.grad, *others = [grad.mul_(weight) for grad, weight in present]
            for other in others:
                parameter.grad.add_(other)
    return torch.cat(losses)


def taken_gradients(replica: Replica) -> list[Tensor | None]:
    """The gradients of a model's parameters, which have none from now on."""
    parameters = list(replica.parameters())
    taken = [
        parameter.grad.clone() if replica.reuses_gradients and parameter.grad is not None else parameter.grad
        for parameter in parameters
    ]
    for parameter in parameters:
        parameter.grad = None
    return taken


def gramian(gradients: Sequence[Sequence[Tensor | None]]) -> Tensor:
    """The dot products of the tasks' gradients, float64[tasks, tasks], on the CPU.

    Args:
        gradients: per task those of the same parameters, averaged over ranks; None counts as zeros.
    """
    count = len(gradients)
    products = torch.zeros(count, count, dtype=torch.float64)
    is_cut = any(g is not None and local_shard(g) is not g for found in gradients for g in found)
    for i in range(count):
        for j in range(i + 1):
            dots = [
                torch.dot(local_shard(one).flatten(), local_shard(other).flatten())
                for one, other in zip(gradients[i], gradients[j], strict=True)
                if one is not None and other is not None
            ]
            products[i, j] = products[j, i] = float(torch.stack(dots).double().sum()) if dots else 0.0
    return all_reduce_sum(products) if is_cut else products
