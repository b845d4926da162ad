"""Base class of optimizers: settings that build a torch optimizer over named parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from palm.core.component import Component, Registry, positive_problems, raise_any
from palm.core.errors import ConfigError, about

BACKBONE = "backbone."
"""Prefix of the names of the encoder's parameters."""


class ParameterGroups(Component):
    """Learning rates for parts of the model, and frozen parts; the schedule multiplies all rates.

    Args:
        backbone_learning_rate: learning rate of the encoder; `learning_rate` by default.
        freeze: part of the encoder that is not trained: embeddings, backbone (all of it), or a number n for
            the embeddings and the lowest n layers.

    Raises:
        ConfigError: if values are out of range.
    """

    def __init__(
        self,
        backbone_learning_rate: float | None = None,
        freeze: Literal["embeddings", "backbone"] | int | None = None,
    ) -> None:
        self.backbone_learning_rate = backbone_learning_rate
        self.freeze = freeze
        given = {} if backbone_learning_rate is None else {"backbone_learning_rate": backbone_learning_rate}
        problems = positive_problems("above 0; use freeze for parameters that should not be trained", **given)
        if isinstance(freeze, int) and not freeze >= 1:
            problems.append(
                about("freeze", f" should be embeddings, backbone or a number of layers, not {freeze!r}")
            )
        raise_any(problems)

    def frozen(self, names: Iterable[str], layers: Callable[[], LayerNames]) -> set[str]:
        """Return the names of the frozen parameters.

        Args:
            names: names of all parameters; the encoder's begin with `backbone.`.
            layers: function that returns the names by layer; called only if `freeze` needs them.

        Raises:
            ConfigError: if `freeze` is above the number of layers.
        """
        if self.freeze is None:
            return set()
        if self.freeze == "backbone":
            return {name for name in names if name.startswith(BACKBONE)}
        # Called only here, because a user's own encoder may not define its layers.
        stages = layers()
        count = 0 if self.freeze == "embeddings" else self.freeze
        assert isinstance(count, int)
        if count >= len(stages):
            raise ConfigError(about("freeze", f": there are {len(stages) - 1} layers, not {count}"))
        return {name for stage in stages[: count + 1] for name in stage}

    def apply(
        self,
        optimizer: torch.optim.Optimizer,
        trainable: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        head_rates: Mapping[str, float],
        factors: Mapping[str, float],
    ) -> None:
        """Split an optimizer's groups so that every parameter has its rate.

        A parameter to which the optimizer assigned a fraction of `learning_rate`, as `adamwdl` does in lower
        layers, gets the same fraction of its own rate.

        Args:
            optimizer: optimizer of the parameters, before its first step.
            trainable: the parameters with their names; the encoder's begin with `backbone.`.
            learning_rate: the rate that the optimizer was built with.
            head_rates: name prefix of a head's parameters -> the head's rate.
            factors: parameter name -> factor of its rate.
        """
        names = {parameter: name for name, parameter in trainable}
        # Split instead of rebuilt, because groups hold settings that only their optimizer knows.
        groups = list(optimizer.param_groups)
        optimizer.param_groups.clear()
        for group in groups:
            by_rate: dict[float, list[int]] = {}
            for index, parameter in enumerate(group["params"]):
                name = names[parameter]
                # The optimizer's factor for a layer also applies to rates other than the base rate.
                factor = group["lr"] / learning_rate * factors.get(name, 1.0)
                by_rate.setdefault(self._rate(name, factor, learning_rate, head_rates), []).append(index)
            lists = {name: group[name] for name in ("params", "param_names") if name in group}
            optimizer.param_groups += [
                {**group, **{name: [values[k] for k in chosen] for name, values in lists.items()}, "lr": rate}
                for rate, chosen in by_rate.items()
            ]

    def _rate(self, name: str, factor: float, learning_rate: float, head_rates: Mapping[str, float]) -> float:
        own = {BACKBONE: self.backbone_learning_rate or learning_rate, **head_rates}
        return factor * next((rate for prefix, rate in own.items() if name.startswith(prefix)), learning_rate)


GradClipType = Literal["global_norm", "norm", "value"]

LayerNames = Sequence[Sequence[str]]
"""Parameter names: those of the embeddings, then those of each layer, from the lowest."""


class Optimizer(Component, ABC):
    """Settings of an optimizer; `build` creates the torch optimizer once there is a model.

    Attributes:
        learning_rate: base learning rate, multiplied by the schedule.
        grad_clip: limit to which the training loop clips gradients; None for no clipping.
        grad_clip_type: kind of clipping, see `clip`.
        running: the torch optimizer of the most recent run.
        needs_layers: True if `build` requires the layers of the model as second argument.
    """

    learning_rate: float
    grad_clip: float | None
    grad_clip_type: GradClipType = "global_norm"
    needs_layers: bool = False
    running: torch.optim.Optimizer | None = None

    def get_cur_learning_rate(self) -> float:
        """Return the highest rate of all groups in the last step; before the first, `learning_rate`."""
        if self.running is None:
            return self.learning_rate
        rate: float = max(group["lr"] for group in self.running.param_groups)
        return rate

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create the torch optimizer of these parameters.

        Parameter groups may have different rates; the schedule multiplies each of them.
        """


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer", Optimizer)


def clip(
    parameters: Iterable[nn.Parameter], limit: float | None, kind: GradClipType = "global_norm"
) -> Tensor:
    """Clip gradients that exceed `limit`, in place.

    `global_norm` scales all gradients by their common norm, `norm` each parameter's gradient by its own, and
    `value` clamps every element. Without a limit, the norm is only measured.

    Returns:
        The global norm before clipping, a scalar on the gradients' device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm(gradients)
    if limit is None:
        return norm
    if kind == "value":
        torch._foreach_clamp_max_(gradients, limit)
        torch._foreach_clamp_min_(gradients, -limit)
    elif kind == "norm":
        norms = torch.stack(torch._foreach_norm(gradients))
        torch._foreach_mul_(gradients, (limit / norms).clamp(max=1.0).unbind())
    elif norm.is_cuda or norm > limit:
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))
    return norm
