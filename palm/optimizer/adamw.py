"""Adam with decoupled weight decay; biases and layer norms do not decay, as in PALM."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from palm.optimizer.base import OPTIMIZERS, GradClipType
from palm.optimizer.moments import DecayRule, EpsilonHatRule, FusedAdamW, MomentOptimizer, flush_small_moments


@OPTIMIZERS.register("adam", "adamw")
class AdamW(MomentOptimizer):
    """Adam with decoupled weight decay.

    One step with rate `lr`: `p ← p − lr·m̂/(√v̂ + epsilon) − lr·weight_decay·p`, with `p` on the right before
    the step. Biases and layer norms do not decay. A parameter without a gradient is not updated at all: no
    decay, no momentum. Other settings: see `MomentOptimizer`.

    Args:
        epsilon_hat: for adam, add epsilon before the bias correction, as PaddlePALM does, not after it:
            `lr·√(1 − beta2^t)/(1 − beta1^t)·m/(√v + epsilon)` in step t.

    Raises:
        ConfigError: if values are out of range.

    Source: Kingma and Ba, 2014, arXiv:1412.6980, with the "epsilon hat" of its section 2; Loshchilov and
    Hutter, 2017, arXiv:1711.05101.
    """

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        grad_clip: float | None = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        grad_clip_type: GradClipType = "global_norm",
        apply_decay_param_fun: DecayRule | str | None = None,
        *,
        epsilon_hat: bool = False,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay,
            grad_clip,
            beta1,
            beta2,
            epsilon,
            grad_clip_type,
            apply_decay_param_fun,
        )
        self.epsilon_hat = epsilon_hat

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create an optimizer with two groups: parameters that decay, and the others."""
        if self.epsilon_hat:
            return EpsilonHatRule(self.groups(named_parameters), self.torch_settings)
        optimizer = FusedAdamW(self.groups(named_parameters), **self.torch_settings, fused=True)
        flush_small_moments(optimizer)
        return optimizer
