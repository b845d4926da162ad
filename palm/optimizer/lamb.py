"""LAMB: Adam updates scaled to the norm of each parameter, for large batches."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from palm.core.checks import raise_any, type_problems
from palm.core.errors import ConfigError, about
from palm.optimizer.base import OPTIMIZERS, GradClipType
from palm.optimizer.moments import DecayRule, Group, MomentOptimizer, MomentRule
from palm.parallel.shards import full_tensor


@OPTIMIZERS.register("lamb")
class Lamb(MomentOptimizer):
    """Layer-wise adaptive moments: `p ← p − lr · ‖p‖/‖u‖ · u` with `u = m̂/(√v̂ + epsilon) + weight_decay·p`.

    Parameters that do not decay (biases and layer norms, unless `apply_decay_param_fun` says otherwise) are
    not scaled either; they get Adam's update. A parameter without a gradient is not updated. Other settings:
    see `MomentOptimizer`.

    Args:
        exclude_from_weight_decay: for lamb, instead of `apply_decay_param_fun`: regular expressions;
            parameters whose name contains a match do not decay.

    Raises:
        ConfigError: if values are out of range.

    Source: You et al., 2019, arXiv:1904.00962, algorithm 2, with phi the identity; the exclusions are
    those of the authors' implementation.
    """

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.01,
        grad_clip: float | None = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        grad_clip_type: GradClipType = "global_norm",
        apply_decay_param_fun: DecayRule | str | None = None,
        *,
        exclude_from_weight_decay: list[str] | None = None,
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
        if exclude_from_weight_decay is not None:
            self._exclude(exclude_from_weight_decay)

    def _exclude(self, patterns: list[str]) -> None:
        raise_any(type_problems(list, "a list of regular expressions", exclude_from_weight_decay=patterns))
        if self._rule is not None:
            raise ConfigError("lamb: set apply_decay_param_fun or exclude_from_weight_decay, not both")
        try:
            excluded = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            problem = f"{error.pattern!r} is not a regular expression: {error}"
            raise ConfigError(about("exclude_from_weight_decay", f": {problem}")) from None
        self._rule = lambda name: not any(pattern.search(name) for pattern in excluded)

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create an optimizer with two groups: parameters that decay and are scaled, and the others."""
        named = list(named_parameters)
        adapting = {id(parameter) for name, parameter in named if self.decays(name, parameter)}
        groups = self.groups(named)
        for group in groups:
            group["adapts"] = id(group["params"][0][1]) in adapting
        return LambRule(groups, self.torch_settings)


class LambRule(MomentRule):
    """The update of `Lamb`; a group's `adapts` is True if its parameters are scaled."""

    def update(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """Perform one step of algorithm 2."""
        # One parameter at a time on a CPU, so that it stays in the cache.
        for some in [parameters] if parameters[0].is_cuda else ([parameter] for parameter in parameters):
            updates = [torch.zeros_like(parameter) for parameter in some]  # holds -u from here on
            self.fused_adam_step(updates, some, step, lr=1.0, betas=group["betas"], eps=group["eps"])
            torch._foreach_add_(updates, some, alpha=-group["weight_decay"])
            if group["adapts"]:
                torch._foreach_mul_(updates, trust_ratios(some, updates))
            if self.skip_flag is not None:
                torch._foreach_mul_(updates, 1 - self.skip_flag)
            torch._foreach_add_(some, updates, alpha=group["lr"])


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the factors by which LAMB scales the updates of parameters.

    Args:
        weights: the parameters, of any shape.
        updates: Adam step plus decay of each parameter, before the learning rate, same shapes.

    Returns:
        Scalars, norm(weight) / norm(update) each; 1 if either norm is zero, because otherwise a parameter
        initialized to zero would never change.

    Source: You et al., 2019, arXiv:1904.00962, algorithm 2, with phi the identity.
    """
    sizes, steps = full_tensor(torch.stack(torch._foreach_norm([*weights, *updates]))).chunk(2)
    return torch.where((sizes > 0) & (steps > 0), sizes / steps, torch.ones_like(sizes)).unbind()
