"""AdamW with layer-wise learning-rate decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from palm.core.checks import raise_any, share_problems
from palm.core.errors import ConfigError
from palm.core.registry import imported
from palm.optimizer.base import OPTIMIZERS, GradClipType, LayerNames
from palm.optimizer.moments import DecayRule, EpsilonHatRule, Group, MomentOptimizer

RateRule = Callable[[float, int, int], float]
"""Decay rate, index of a layer, number of layers -> factor of the learning rate in this layer."""


def layerwise_lr_decay(decay_rate: float, layer: int, n_layers: int) -> float:
    """Compute the learning-rate factor of a layer: 1 for the top one, times `decay_rate` per layer below it.

    Args:
        decay_rate: α.
        layer: m: 0 for the embeddings, 1 for the lowest layer, `n_layers` for the top one.
        n_layers: n.

    Returns:
        `α ** (n − m)`.

    Source: Yang et al., 2019, arXiv:1906.08237, section A.4; PaddleNLP's documentation of AdamWDL.
    """
    return float(decay_rate ** (n_layers - layer))


@OPTIMIZERS.register("adamwdl")
class AdamWDL(MomentOptimizer):
    """AdamW with dynamic learning rates: layer m of n has `learning_rate · layerwise_decay^(n − m)`.

    The embeddings, m = 0, have the lowest rate; the heads and all other parameters above the top layer have
    `learning_rate`. Step t of a parameter with rate `lr`: `p ← p − lr_t · (m/(√v + epsilon) +
    weight_decay·p)` with `lr_t = lr · √(1 − beta2^t) / (1 − beta1^t)`. Other
    settings: see `MomentOptimizer`.

    Args:
        layerwise_decay: for adamwdl, α, the ratio of each layer's rate to that of the layer above it; above
            0, at most 1; 1 for the same rate in all layers.
        set_param_lr_fun: for adamwdl, custom rule for the rates of layers: a function with the arguments of
            `palm.optimizer.layerwise_lr_decay`, or its dotted path.

    Raises:
        ConfigError: if values are out of range.

    Source: PaddleNLP's documentation of AdamWDL, with its defaults.
    """

    def __init__(
        self,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        grad_clip: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        grad_clip_type: GradClipType = "global_norm",
        apply_decay_param_fun: DecayRule | str | None = None,
        *,
        layerwise_decay: float = 1.0,
        set_param_lr_fun: RateRule | str | None = None,
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
        raise_any(share_problems(layerwise_decay=layerwise_decay))
        self.layerwise_decay = layerwise_decay
        rule = layerwise_lr_decay if set_param_lr_fun is None else set_param_lr_fun
        self._rate_rule: RateRule = imported("rate rule", rule) if isinstance(rule, str) else rule
        self.needs_layers = layerwise_decay < 1 or set_param_lr_fun is not None

    def build(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], layers: LayerNames | None = None
    ) -> torch.optim.Optimizer:
        """Create an optimizer with two groups per layer: parameters that decay, and the others.

        Args:
            named_parameters: the parameters of the model.
            layers: the names of the embeddings' parameters, then those of each layer, from the lowest;
                required if rates differ.

        Raises:
            ConfigError: if rates differ and `layers` is missing.
        """
        if self.needs_layers and layers is None:
            raise ConfigError("adamwdl: layerwise_decay needs the layer of each parameter")
        layers = layers or []
        # Rates follow the layers that the encoder defines, not name patterns; parameters outside all layers,
        # such as heads and pooler, have the full rate.
        factors = {
            name: self._rate_rule(self.layerwise_decay, number, len(layers) - 1)
            for number, names in enumerate(layers)
            for name in names
        }
        groups: dict[tuple[float, float], Group] = {}
        for group in self.groups(named_parameters):
            for name, parameter in group["params"]:
                rate = self.learning_rate * factors.get(name, 1.0)
                own = groups.setdefault((group["weight_decay"], rate), {**group, "params": [], "lr": rate})
                own["params"].append((name, parameter))
        # In the documented formula, weight decay has the corrected rate too.
        return EpsilonHatRule(groups.values(), {**self.torch_settings, "corrects_decay": True})
