"""Base class of optimizers: settings that build a torch optimizer over named parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from palm.core.component import Component
from palm.core.registry import Registry
from palm.parallel.shards import full_tensor

GradClipType = Literal["global_norm", "norm", "value"]

LayerNames = Sequence[Sequence[str]]
"""Parameter names: those of the embeddings, then those of each layer, from the lowest."""


class Optimizer(Component, ABC):
    """Settings of an optimizer; `build` creates the torch optimizer once there is a model.

    Attributes:
        learning_rate: base learning rate, multiplied by the schedule.
        grad_clip: limit to which the training loop clips gradients; None for no clipping.
        grad_clip_type: kind of clipping, see `clip`.
        running: the torch optimizer of the most recent run.
        needs_layers: True if `build` requires the layers of the model as second argument.
    """

    learning_rate: float
    grad_clip: float | None
    grad_clip_type: GradClipType = "global_norm"
    needs_layers: bool = False
    running: torch.optim.Optimizer | None = None

    def get_cur_learning_rate(self) -> float:
        """Return the highest rate of all groups in the last step; before the first, `learning_rate`."""
        if self.running is None:
            return self.learning_rate
        rate: float = max(group["lr"] for group in self.running.param_groups)
        return rate

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create the torch optimizer of these parameters.

        Parameter groups may have different rates; the schedule multiplies each of them.
        """


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer", Optimizer)


def clip(
    parameters: Iterable[nn.Parameter], limit: float | None, kind: GradClipType = "global_norm"
) -> Tensor:
    """Clip gradients that exceed `limit`, in place.

    `global_norm` scales all gradients by their common norm, `norm` each parameter's gradient by its own, and
    `value` clamps every element. Without a limit, the norm is only measured.

    Returns:
        The global norm before clipping, a scalar on the gradients' device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = full_tensor(get_total_norm(gradients))
    if limit is None:
        return norm
    if kind == "value":
        torch._foreach_clamp_max_(gradients, limit)
        torch._foreach_clamp_min_(gradients, -limit)
    elif kind == "norm":
        norms = full_tensor(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (limit / norms).clamp(max=1.0).unbind())
    elif norm.is_cuda or norm > limit:
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))
    return norm
