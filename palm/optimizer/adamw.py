"""Adam with decoupled weight decay, and PALM's choice of what decays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from palm.optimizer.base import OPTIMIZERS, GradClipType
from palm.optimizer.moments import EpsilonHatRule, FusedAdamW, MomentOptimizer, keep_moments_normal


@OPTIMIZERS.register("adam", "adamw")
class AdamW(MomentOptimizer):
    """Adam whose weight decay does not pass through the gradient.

    One step with rate `lr`: `p ← p − lr·m̂/(√v̂ + epsilon) − lr·weight_decay·p`, where the decay
    reads `p` as it was before the step. Biases and layer norms do not decay. A parameter without
    a gradient does not move at all: no decay, no momentum.

    Args:
        epsilon_hat: of adam, add epsilon before the bias correction, as PaddlePALM does, and not after it:
            `lr·√(1 − beta2^t)/(1 − beta1^t)·m/(√v + epsilon)` in step t.

    Raises:
        ConfigError: for values outside their range.

    Source: Kingma and Ba, 2014, arXiv:1412.6980, with the "epsilon hat" of its section 2; Loshchilov and
    Hutter, 2017, arXiv:1711.05101.
    """

    def take(self, *, epsilon_hat: bool = False) -> None:
        """Take the setting of its own."""
        self.epsilon_hat = epsilon_hat

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Two groups: what decays, what does not."""
        if self.epsilon_hat:
            settings = {"lr": self.learning_rate, "betas": self.betas, "eps": self.epsilon}
            return EpsilonHatRule(self.groups(named_parameters), settings)
        optimizer = FusedAdamW(
            self.groups(named_parameters),
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.epsilon,
            fused=True,
        )
        keep_moments_normal(optimizer)
        return optimizer


class Adam(AdamW):
    """`AdamW` with the constructor of PaddlePALM 2.x, `Adam(loss_var, lr, lr_schedualer)`.

    Args:
        loss_var: what the trainer's `build_forward` returned; nothing is read from it.
        learning_rate: the rate that the schedule multiplies (2.x: `lr`).
        lr_scheduler: factor of the learning rate by global step; None for a constant rate.
        weight_decay: as in `AdamW`; `Trainer.build_backward(weight_decay=…)` sets it too.
        grad_clip: as in `AdamW`, but off by default, as it was there.
        grad_clip_type: as in `AdamW`.
        epsilon_hat: as in `AdamW`.
    """

    aliases: ClassVar[dict[str, str]] = {"lr": "learning_rate", "lr_schedualer": "lr_scheduler"}

    def __init__(
        self,
        loss_var: Any,  # noqa: ARG002
        learning_rate: float,
        lr_scheduler: Callable[[int], float] | None = None,
        weight_decay: float = 0.0,
        grad_clip: float | None = None,
        grad_clip_type: GradClipType = "global_norm",
        epsilon_hat: bool = False,
    ) -> None:
        super().__init__(
            learning_rate, weight_decay, grad_clip, grad_clip_type=grad_clip_type, epsilon_hat=epsilon_hat
        )
        self.lr_scheduler = lr_scheduler
