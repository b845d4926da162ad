"""Freezing, and learning rates of parts of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import nn

from palm.core.checks import positive_problems, raise_any
from palm.core.component import Component
from palm.core.errors import ConfigError
from palm.core.registry import did_you_mean
from palm.optimizer.base import LayerNames

BACKBONE = "backbone."
"""How the names of the encoder's parameters begin."""


class ParameterGroups(Component):
    """Learning rates of parts of the model, and what is frozen; the schedule multiplies all rates.

    Args:
        backbone_learning_rate: rate of the encoder; `learning_rate` where absent.
        parameter_learning_rates: pattern -> rate of the parameters whose name fits it
            (`backbone.layers.*.norm.*`); the first pattern that fits counts, before all other rates.
        freeze: what of the encoder does not move: embeddings, backbone (all of it), or a number n: the
            embeddings and the lowest n layers.

    Raises:
        ConfigError: for values outside their range.
    """

    def __init__(
        self,
        backbone_learning_rate: float | None = None,
        parameter_learning_rates: Mapping[str, float] | None = None,
        freeze: Literal["embeddings", "backbone"] | int | None = None,
    ) -> None:
        self.backbone_learning_rate = backbone_learning_rate
        self.patterns = dict(parameter_learning_rates or {})
        self.freeze = freeze
        rates = {"backbone_learning_rate": backbone_learning_rate}
        rates |= {f"parameter_learning_rates: {pattern!r}": rate for pattern, rate in self.patterns.items()}
        given = {name: rate for name, rate in rates.items() if rate is not None}
        problems = positive_problems("above 0; what is not to move belongs in freeze", **given)
        if isinstance(freeze, int) and not freeze >= 1:
            problems.append(f"freeze should be embeddings, backbone or a number of layers, not {freeze!r}")
        raise_any(problems)

    def frozen(self, names: Iterable[str], layers: Callable[[], LayerNames]) -> set[str]:
        """The names of the parameters that do not move.

        Args:
            names: of all parameters; the encoder's begin with `backbone.`.
            layers: gives the names by layer; only asked where it matters.

        Raises:
            ConfigError: there are not so many layers.
        """
        if self.freeze is None:
            return set()
        if self.freeze == "backbone":
            return {name for name in names if name.startswith(BACKBONE)}
        # Asked for only here, because an encoder of the user's may not tell its layers.
        stages = layers()
        count = 0 if self.freeze == "embeddings" else self.freeze
        assert isinstance(count, int)
        if count >= len(stages):
            raise ConfigError(f"freeze: there are {len(stages) - 1} layers, not {count}")
        return {name for stage in stages[: count + 1] for name in stage}

    def apply(
        self,
        optimizer: torch.optim.Optimizer,
        moving: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        head_rates: Mapping[str, float],
        factors: Mapping[str, float],
    ) -> None:
        """Split an optimizer's groups so that every parameter has its rate.

        Where the optimizer gave a parameter a part of `learning_rate`, as `adamwdl` does in lower layers, it
        gets the same part of its own rate; a rate by pattern is taken as it is.

        Args:
            optimizer: of the parameters, before its first step.
            moving: the parameters with their names; the encoder's begin with `backbone.`.
            learning_rate: the rate that the optimizer was built with.
            head_rates: the beginning of the names of a head's parameters -> its rate.
            factors: name of a parameter -> factor of the rate that it would have; patterns go before.

        Raises:
            ConfigError: a pattern that fits no parameter.
        """
        names = {parameter: name for name, parameter in moving}
        self._check_patterns(list(names.values()))
        # Split, not built anew: a group has settings of its optimizer that this knows nothing of.
        groups = list(optimizer.param_groups)
        optimizer.param_groups.clear()
        for group in groups:
            by_rate: dict[float, list[int]] = {}
            for place, parameter in enumerate(group["params"]):
                name = names[parameter]
                # What an optimizer made of the base rate for a layer, it makes of any other rate.
                part = group["lr"] / learning_rate * factors.get(name, 1.0)
                by_rate.setdefault(self._rate(name, part, learning_rate, head_rates), []).append(place)
            lists = {name: group[name] for name in ("params", "param_names") if name in group}
            optimizer.param_groups += [
                {**group, **{name: [values[k] for k in places] for name, values in lists.items()}, "lr": rate}
                for rate, places in by_rate.items()
            ]

    def _check_patterns(self, names: Sequence[str]) -> None:
        """Refuse patterns that fit none of the names of parameters that move."""
        raise_any(
            f"parameter_learning_rates: {pattern!r} fits no parameter that moves"
            f"{did_you_mean(pattern, names) or f'; they are called like {names[-1]!r}'}"
            for pattern in self.patterns
            if not any(fnmatchcase(name, pattern) for name in names)
        )

    def _rate(self, name: str, part: float, learning_rate: float, head_rates: Mapping[str, float]) -> float:
        for pattern, rate in self.patterns.items():
            if fnmatchcase(name, pattern):
                return rate
        # What is neither the encoder's nor a head's, such as a task's own layers, has `learning_rate`.
        own = {BACKBONE: self.backbone_learning_rate or learning_rate, **head_rates}
        return part * next((rate for start, rate in own.items() if name.startswith(start)), learning_rate)
