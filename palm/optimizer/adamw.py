"""Adam with decoupled weight decay, and PALM's choice of what decays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from palm.errors import ConfigError
from palm.optimizer.base import OPTIMIZERS, Optimizer
from palm.optimizer.moments import keep_moments_normal


@OPTIMIZERS.register("adam", "adamw")
class AdamW(Optimizer):
    """Adam whose weight decay does not pass through the gradient.

    One step with rate `lr`: `p ← p − lr·m̂/(√v̂ + epsilon) − lr·weight_decay·p`, where the decay
    reads `p` as it was before the step. Biases and layer norms do not decay. A parameter without
    a gradient does not move at all: no decay, no momentum.

    Args:
        learning_rate: the rate that the schedule multiplies.
        weight_decay: share of a parameter, per unit of rate, that each step takes away.
        grad_clip: global norm to which gradients are clipped before the step; None for no clipping.
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients.
        epsilon: added to the root of the latter, against division by zero.

    Raises:
        ConfigError: for values outside their range.

    Source: Kingma and Ba, 2014, arXiv:1412.6980; Loshchilov and Hutter, 2017, arXiv:1711.05101.
    """

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        grad_clip: float | None = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.betas = (beta1, beta2)
        self.epsilon = epsilon
        if problems := list(self._problems()):
            raise ConfigError(problems)

    def _problems(self) -> Iterator[str]:
        if not self.learning_rate > 0:
            yield f"learning_rate should be above 0, not {self.learning_rate!r}"
        if not self.weight_decay >= 0:
            yield f"weight_decay should be 0 or more, not {self.weight_decay!r}"
        if self.grad_clip is not None and not self.grad_clip > 0:
            yield f"grad_clip should be above 0, or null for no clipping, not {self.grad_clip!r}"
        for name, beta in zip(("beta1", "beta2"), self.betas, strict=True):
            if not 0 <= beta < 1:
                yield f"{name} should be at least 0 and below 1, not {beta!r}"
        if not self.epsilon > 0:
            yield f"epsilon should be above 0, not {self.epsilon!r}"

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.AdamW:
        """Two groups: what decays, what does not."""
        named = list(named_parameters)
        groups = [
            {"params": [(name, p) for name, p in named if decays(p)], "weight_decay": self.weight_decay},
            {"params": [(name, p) for name, p in named if not decays(p)], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.epsilon,
            fused=True,
        )
        keep_moments_normal(optimizer)
        return optimizer


def decays(parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices and embeddings, not to biases and layer norms."""
    return parameter.ndim > 1


class Adam(AdamW):
    """`AdamW` with the constructor of PaddlePALM 2.x, `Adam(loss_var, lr, lr_schedualer)`.

    Args:
        loss_var: what the trainer's `build_forward` returned; nothing is read from it.
        learning_rate: the rate that the schedule multiplies (2.x: `lr`).
        lr_scheduler: factor of the learning rate by global step; None for a constant rate.
        weight_decay: as in `AdamW`; `Trainer.build_backward(weight_decay=…)` sets it too.
        grad_clip: as in `AdamW`, but off by default, as it was there.
    """

    aliases: ClassVar[dict[str, str]] = {"lr": "learning_rate", "lr_schedualer": "lr_scheduler"}

    def __init__(
        self,
        loss_var: Any,  # noqa: ARG002
        learning_rate: float,
        lr_scheduler: Callable[[int], float] | None = None,
        weight_decay: float = 0.0,
        grad_clip: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay, grad_clip)
        self.lr_scheduler = lr_scheduler
