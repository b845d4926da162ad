"""AdamW with a smaller rate for every layer further down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from palm.core.component import Translate, unused
from palm.core.errors import ConfigError
from palm.core.registry import imported
from palm.optimizer.base import OPTIMIZERS, LayerNames, Optimizer
from palm.optimizer.moments import EpsilonHatRule, Group, MomentOptimizer

RateRule = Callable[[float, int, int], float]
"""Decay rate, number of a layer, number of layers -> the factor of the learning rate in this layer."""


def layerwise_lr_decay(decay_rate: float, layer: int, n_layers: int) -> float:
    """The factor of the learning rate in a layer: 1 in the topmost, `decay_rate` times less in each below it.

    Args:
        decay_rate: α.
        layer: m: 0 for the embeddings, 1 for the lowest layer, `n_layers` for the topmost.
        n_layers: n.

    Returns:
        `α ** (n − m)`.

    Source: Yang et al., 2019, arXiv:1906.08237, section A.4; PaddleNLP's document on AdamWDL.
    """
    return float(decay_rate ** (n_layers - layer))


def _never_lazy(value: object) -> dict[str, Any]:
    if value:
        raise ConfigError("AdamWDL: lazy_mode is not offered: moments of all rows move in every step")
    return {}


@OPTIMIZERS.register("adamwdl")
class AdamWDL(MomentOptimizer):
    """AdamW with dynamic learning rates: that of layer m of n is `learning_rate · layerwise_decay^(n − m)`.

    The embeddings, m = 0, have the lowest; heads and what else comes after the topmost layer have
    `learning_rate`. One step with rate `lr`, at step t of a parameter: `p ← p − lr_t · (m/(√v + epsilon) +
    weight_decay·p)` with `lr_t = lr · √(1 − beta2^t) / (1 − beta1^t)`.

    Args:
        layerwise_decay: of adamwdl, α: how much smaller each layer's rate is than that of the one above it;
            above 0, at most 1; 1 for one rate in all layers.
        set_param_lr_fun: of adamwdl, another rule for the rates of layers: a function with the arguments of
            `palm.optimizer.layerwise_lr_decay`, or the dotted path of one.

    Raises:
        ConfigError: for values outside their range.

    Source: PaddleNLP's document on AdamWDL, with its defaults.
    """

    only_2x: ClassVar[Mapping[str, Translate]] = {
        **Optimizer.only_2x,
        **dict.fromkeys(["parameters", "multi_precision", "n_layers", "name_dict", "name"], unused),
        "lazy_mode": _never_lazy,
    }
    order_2x = (
        *("learning_rate", "beta1", "beta2", "epsilon", "parameters", "weight_decay"),
        *("apply_decay_param_fun", "grad_clip", "lazy_mode", "multi_precision", "layerwise_decay"),
        *("n_layers", "set_param_lr_fun", "name_dict", "name"),
    )

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 1e-3, "weight_decay": 0.01, "grad_clip": None}

    def take(self, *, layerwise_decay: float = 1.0, set_param_lr_fun: RateRule | str | None = None) -> None:
        """Take the settings of its own."""
        if not 0 < layerwise_decay <= 1:
            raise ConfigError(f"layerwise_decay should be above 0 and at most 1, not {layerwise_decay!r}")
        self.layerwise_decay = layerwise_decay
        rule = layerwise_lr_decay if set_param_lr_fun is None else set_param_lr_fun
        self._rate_rule: RateRule = imported("rate rule", rule) if isinstance(rule, str) else rule
        self.needs_layers = layerwise_decay < 1 or set_param_lr_fun is not None

    def build(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], layers: LayerNames | None = None
    ) -> torch.optim.Optimizer:
        """Two groups for each layer.

        Args:
            named_parameters: of the model.
            layers: the names of the embeddings' parameters, then those of each layer, from the lowest;
                only needed where rates differ.

        Raises:
            ConfigError: rates differ, and the layers are not given.
        """
        if self.needs_layers and layers is None:
            raise ConfigError("adamwdl: layerwise_decay needs the layer of each parameter")
        layers = layers or []
        # Rates go by the layers that the encoder tells, not by patterns of names: what is in none of them,
        # heads and pooler, has the full rate.
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
        return AdamWDLRule(
            groups.values(), {"lr": self.learning_rate, "betas": self.betas, "eps": self.epsilon}
        )


class AdamWDLRule(EpsilonHatRule):
    """The update of `AdamWDL`: in its document's formula the decay has the corrected rate too."""

    def decay(self, group: Group, corrected: float) -> float:
        """The group's, times that correction."""
        return float(group["weight_decay"]) * corrected
