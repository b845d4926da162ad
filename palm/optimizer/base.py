"""The base class of optimizers: settings that build a torch optimizer over named parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from palm.core.component import Component, Translate, unused
from palm.core.registry import Registry
from palm.distributed.shards import full_tensor

GradClipType = Literal["global_norm", "norm", "value"]


GRAD_CLIP_TYPES: tuple[GradClipType, ...] = get_args(GradClipType)

LayerNames = Sequence[Sequence[str]]
"""Names of parameters: those of the embeddings, then those of each layer, from the lowest."""


class Optimizer(Component, ABC):
    """Settings of an optimizer, which become one when there is a model.

    Attributes:
        learning_rate: the rate that the schedule multiplies.
        grad_clip: what the training loop clips gradients to; None for no clipping.
        grad_clip_type: how, see `clip`.
        running: the torch optimizer of the run that it was last given to.
        needs_layers: whether `build` takes the layers of the model as second argument.
    """

    only_2x: ClassVar[Mapping[str, Translate]] = {"lr_scheduler": unused}
    not_called: ClassVar[Mapping[str, str]] = {
        "_build": "override build(named_parameters), give grad_clip=… to clip, "
        "or derive from palm.optimizer.base_optimizer.Optimizer"
    }
    learning_rate: float
    grad_clip: float | None
    grad_clip_type: GradClipType = "global_norm"
    needs_layers: bool = False
    running: torch.optim.Optimizer | None = None

    def get_cur_learning_rate(self) -> float:
        """The rate of the last step, the largest of all groups; before the first, `learning_rate`."""
        if self.running is None:
            return self.learning_rate
        rate: float = max(group["lr"] for group in self.running.param_groups)
        return rate

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """The torch optimizer of these parameters.

        Groups of parameters may have rates of their own; the schedule multiplies each group's.
        """


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer", Optimizer)


def clip(
    parameters: Iterable[nn.Parameter], limit: float | None, kind: GradClipType = "global_norm"
) -> Tensor:
    """Make gradients smaller, in place, where they are above `limit`.

    `global_norm` scales all gradients together by their common norm, `norm` each parameter's by its own, and
    `value` cuts every element off. No limit only measures.

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
