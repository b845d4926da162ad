"""One update on the batches of one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from palm.core.tensor_specs import Tensors
from palm.distributed import Replica
from palm.optimizer import GradClipType, clip


def train_step(
    replica: Replica,
    task: str,
    parts: Sequence[tuple[Tensors, float]],
    optimizer: torch.optim.Optimizer,
    update: Callable[[Mapping[str, Tensor]], object],
    *,
    grad_clip: float | None = None,
    grad_clip_type: GradClipType = "global_norm",
    loss_weight: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One update of the backbone and one task's head, on that task's loss.

    Args:
        replica: of a model in training mode.
        task: the task's name.
        parts: batches with targets, on the model's device, and the share of each in the loss; more
            than one where gradients are accumulated. See `Replica.shares`.
        optimizer: parameters without a gradient do not move: no decay, no momentum.
        update: lets it make its step, if the loss and the norm, which it is given by name, are finite.
        grad_clip: what the gradient is clipped to; None does not clip.
        grad_clip_type: how, as in `palm.optimizer.clip`.
        loss_weight: factor of the loss in the gradient.

    Returns:
        The loss of all ranks' rows before the update, without its weight, detached; and the norm of the
        gradient before clipping.

    Raises:
        FloatingPointError: the loss or the gradient is not a number; nothing was updated.
    """
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for number, (batch, share) in enumerate(parts, start=1):
        with replica.exchanging(is_last=number == len(parts)):
            loss = replica.loss(task, batch) * share
            (loss * loss_weight).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    loss = replica.mean(torch.stack(losses).sum())
    norm = clip(replica.parameters(), grad_clip, grad_clip_type)
    update({"loss": loss, "gradient's norm": norm})
    return loss, norm
