"""Adam with decoupled weight decay; biases and layer norms do not decay, as in PALM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from palm.core.component_2x import Translate, unused
from palm.optimizer.base import OPTIMIZERS, Optimizer
from palm.optimizer.moments import EpsilonHatRule, FusedAdamW, MomentOptimizer, flush_small_moments


@OPTIMIZERS.register("adam", "adamw")
class AdamW(MomentOptimizer):
    """Adam with decoupled weight decay.

    One step with rate `lr`: `p ← p − lr·m̂/(√v̂ + epsilon) − lr·weight_decay·p`, with `p` on the right before
    the step. Biases and layer norms do not decay. A parameter without a gradient is not updated at all: no
    decay, no momentum.

    Args:
        epsilon_hat: for adam, add epsilon before the bias correction, as PaddlePALM does, not after it:
            `lr·√(1 − beta2^t)/(1 − beta1^t)·m/(√v + epsilon)` in step t.

    Raises:
        ConfigError: if values are out of range.

    Source: Kingma and Ba, 2014, arXiv:1412.6980, with the "epsilon hat" of its section 2; Loshchilov and
    Hutter, 2017, arXiv:1711.05101.
    """

    def setup(self, *, epsilon_hat: bool = False) -> None:
        """Choose the update rule."""
        self.epsilon_hat = epsilon_hat

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create an optimizer with two groups: parameters that decay, and the others."""
        if self.epsilon_hat:
            return EpsilonHatRule(self.groups(named_parameters), self.torch_settings)
        optimizer = FusedAdamW(self.groups(named_parameters), **self.torch_settings, fused=True)
        flush_small_moments(optimizer)
        return optimizer


class Adam(AdamW):
    """`AdamW` with the constructor of PaddlePALM 2.x, `Adam(loss_var, lr, lr_schedualer)`.

    `loss_var` is ignored, and gradients are not clipped by default, as in 2.x.
    """

    stands_for = AdamW
    aliases: ClassVar[dict[str, str]] = {"lr": "learning_rate", "lr_schedualer": "lr_scheduler"}
    only_2x: ClassVar[Mapping[str, Translate]] = {"loss_var": unused, **Optimizer.only_2x}
    order_2x = (
        *("loss_var", "learning_rate", "lr_scheduler"),
        *("weight_decay", "grad_clip", "grad_clip_type", "epsilon_hat"),
    )
    defaults: ClassVar[Mapping[str, Any]] = {"grad_clip": None}
