"""What an optimizer is here: settings that build a torch optimizer over a model's named parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from palm.component import Component
from palm.registry import Registry


class Optimizer(Component, ABC):
    """Settings of an optimizer, which become one when there is a model.

    Attributes:
        grad_clip: the global norm that the training loop clips gradients to; None for no clipping.
    """

    grad_clip: float | None

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """The torch optimizer of these parameters.

        Groups of parameters may have rates of their own; the schedule multiplies each group's.
        """


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer")


def clip(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients together, in place, so that their global norm is at most `max_norm`.

    Args:
        parameters: those without a gradient are passed over.
        max_norm: the largest norm that is left alone; None to measure only.

    Returns:
        The norm before clipping, a scalar on the gradients' device; reading it is the caller's choice,
        because it makes a GPU wait. Where it is not finite, the gradients are not to be used.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm(gradients)
    if max_norm is not None and (norm.is_cuda or norm > max_norm):
        torch._foreach_mul_(gradients, (max_norm / norm).clamp(max=1.0))
    return norm
