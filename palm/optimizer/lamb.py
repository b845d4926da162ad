"""LAMB: Adam's steps, each parameter's scaled to its own size, for large batches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palm.core.component import Translate, unused
from palm.core.errors import ConfigError
from palm.distributed.shards import full_tensor
from palm.optimizer.base import OPTIMIZERS, Optimizer
from palm.optimizer.moments import Group, MomentOptimizer, MomentRule


@OPTIMIZERS.register("lamb")
class Lamb(MomentOptimizer):
    """Layer-wise adaptive moments: `p ← p − lr · ‖p‖/‖u‖ · u` with `u = m̂/(√v̂ + epsilon) + weight_decay·p`.

    What does not decay, biases and layer norms if `apply_decay_param_fun` does not say otherwise, is
    left out of the scaling too and takes Adam's step. A parameter without a gradient does not move.

    Args:
        exclude_from_weight_decay: of lamb, in place of `apply_decay_param_fun`: regular expressions; what has
            one of them in its name does not decay.

    Raises:
        ConfigError: for values outside their range.

    Source: You et al., 2019, arXiv:1904.00962, algorithm 2, with phi the identity; the exclusions are
    those of the authors' program.
    """

    aliases: ClassVar[dict[str, str]] = {
        "weight_decay_rate": "weight_decay",
        "beta_1": "beta1",
        "beta_2": "beta2",
    }
    only_2x: ClassVar[Mapping[str, Translate]] = {**Optimizer.only_2x, "name": unused}
    order_2x = (
        *("learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "exclude_from_weight_decay", "name"),
    )

    defaults: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.01, "epsilon": 1e-6}

    def take(self, *, exclude_from_weight_decay: list[str] | None = None) -> None:
        """Take the setting of its own."""
        if exclude_from_weight_decay is None:
            return
        if self._rule is not None:
            raise ConfigError("lamb: set apply_decay_param_fun or exclude_from_weight_decay, not both")
        try:
            excluded = [re.compile(pattern) for pattern in exclude_from_weight_decay]
        except re.error as error:
            problem = f"{error.pattern!r} is no regular expression: {error}"
            raise ConfigError(f"exclude_from_weight_decay: {problem}") from None
        self._rule = lambda name: not any(pattern.search(name) for pattern in excluded)

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Two groups: what decays and is scaled, what is not."""
        named = list(named_parameters)
        adapting = {id(parameter) for name, parameter in named if self.decays(name, parameter)}
        groups = self.groups(named)
        for group in groups:
            group["adapts"] = id(group["params"][0][1]) in adapting
        return LambRule(groups, {"lr": self.learning_rate, "betas": self.betas, "eps": self.epsilon})


class LambRule(MomentRule):
    """The update of `Lamb`; `adapts` in a group says whether its parameters are scaled."""

    def move(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """One step of algorithm 2."""
        # On a CPU one by one, while a parameter is in the cache.
        for some in [parameters] if parameters[0].is_cuda else ([parameter] for parameter in parameters):
            updates = [torch.zeros_like(parameter) for parameter in some]  # minus u, from here on
            self.take_adam_step(updates, some, step, lr=1.0, betas=group["betas"], eps=group["eps"])
            torch._foreach_add_(updates, some, alpha=-group["weight_decay"])
            if group["adapts"]:
                torch._foreach_mul_(updates, trust_ratios(some, updates))
            if self.refuses is not None:
                torch._foreach_mul_(updates, 1 - self.refuses)
            torch._foreach_add_(some, updates, alpha=group["lr"])


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the factors by which LAMB scales the updates of parameters to their sizes.

    Args:
        weights: the parameters, of any shapes.
        updates: the Adam step of each plus its decay, same shapes, before the learning rate.

    Returns:
        Scalars, norm(weight) / norm(update) each; 1 where either norm is zero, because a parameter that
        starts at zero would otherwise never move.

    Source: You et al., 2019, arXiv:1904.00962, algorithm 2, with phi the identity.
    """
    sizes, steps = full_tensor(torch.stack(torch._foreach_norm([*weights, *updates]))).chunk(2)
    return torch.where((sizes > 0) & (steps > 0), sizes / steps, torch.ones_like(sizes)).unbind()
