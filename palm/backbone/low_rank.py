"""Low-rank adaptation (LoRA) of an encoder's linear layers for one task."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone.base import Backbone, with_modules
from palm.core.component import count_problems, did_you_mean, number_problems, raise_any, type_problems
from palm.core.device import compute_dtype
from palm.core.errors import about
from palm.core.layers import SharedLinear


class LowRank(nn.Module):
    """Low-rank updates of linear layers: a task's weight is `W + alpha / rank · B A`, with the shared W.

    While training, the update is added to the layer's output, so a frozen W needs no gradient.

    Args:
        layers: name of a layer in the encoder -> the layer.
        ranks: name -> rank of its update.
        alpha: scale of all updates.
        seed: seed of A, which is uniform within `1 / sqrt(in)` as in PEFT; B is 0, so the initial outputs are
            bit-identical to those of the encoder.

    Source: Hu et al., 2021, arXiv:2106.09685, section 4.1.
    """

    def __init__(
        self, layers: Mapping[str, nn.Linear], ranks: Mapping[str, int], alpha: float, seed: int
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.names = list(layers)
        source = torch.Generator().manual_seed(seed)  # leaves the initialization of heads unchanged
        self.down = nn.ParameterList()
        self.up = nn.ParameterList()
        for name, layer in layers.items():
            limit = 1 / math.sqrt(layer.in_features)
            down = torch.empty(ranks[name], layer.in_features).uniform_(-limit, limit, generator=source)
            self.down.append(nn.Parameter(down.to(layer.weight.device)))
            self.up.append(nn.Parameter(layer.weight.new_zeros(layer.out_features, ranks[name])))

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Map the name of each layer to its A, [rank, in], and B, [out, rank]."""
        return {name: (down, up) for name, down, up in zip(self.names, self.down, self.up, strict=True)}

    def applied_to(self, backbone: Backbone) -> Backbone:
        """Return an encoder that shares all parts except the updated layers; gradients reach W, A and B."""
        return self._with_layers(backbone, AdaptedLinear)

    @torch.no_grad()
    def merged_into(self, backbone: Backbone) -> Backbone:
        """Return an encoder with the current updated weights as parameters, to predict with or to save."""
        return self._with_layers(backbone, _merged)

    def _with_layers(
        self, backbone: Backbone, make: Callable[[nn.Linear, Tensor, Tensor, float], nn.Linear]
    ) -> Backbone:
        layers: dict[str, nn.Module] = {}
        for name, (down, up) in self.factors().items():
            shared = backbone.get_submodule(name)
            assert isinstance(shared, nn.Linear)
            layers[name] = make(shared, down, up, self.alpha / len(down))
        return with_modules(backbone, layers)


class AdaptedLinear(SharedLinear):
    """A linear layer, of which it shares the parameters, with a low-rank update of its output.

    Args:
        shared: the layer.
        down: A, [rank, in].
        up: B, [out, rank].
        scale: factor of the update.
    """

    def __init__(self, shared: nn.Linear, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__(shared)
        self.factors = (down, up)
        self.scale = scale

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply layer and update, in the dtype of autocast or of the tokens."""
        dtype = compute_dtype(tokens)
        tokens = tokens.to(dtype)
        weight, bias = (None if each is None else each.to(dtype) for each in (self.weight, self.bias))
        down, up = (factor.to(dtype) for factor in self.factors)
        update = F.linear(F.linear(tokens, down), up)
        assert weight is not None
        return torch.add(F.linear(tokens, weight, bias), update, alpha=self.scale)


def _merged(shared: nn.Linear, down: Tensor, up: Tensor, scale: float) -> nn.Linear:
    merged = copy.copy(shared)
    weight = nn.Parameter(torch.addmm(shared.weight, up, down, alpha=scale), requires_grad=False)
    merged._parameters = {**shared._parameters, "weight": weight}
    return merged


DEFAULTS: dict[str, Any] = {"rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": ["query", "value"]}
"""The keys of the setting `lora` that describe new adapters, and their defaults."""

FROM = "from"
"""The key for a directory of adapters in PEFT's format, which replaces the other keys."""


def alpha_problems(alpha: object) -> list[str]:
    """Check the scale of updates; with a larger one, float32 would overflow."""
    return number_problems("a number above 0, at most 1e6", lambda value: 0 < value <= 1e6, alpha=alpha)


def lora_problems(lora: Any) -> list[str]:
    """Check the value of the setting `lora`; one line per problem."""
    if not isinstance(lora, Mapping):
        wanted = "a mapping such as {rank: 8, alpha: 16, targets: [query, value]}"
        return type_problems(Mapping, wanted, lora=lora)
    known = [*DEFAULTS, FROM]
    lines = [f"nothing uses {name!r}{_hint(str(name), known)}" for name in lora if name not in known]
    if others := [name for name in lora if name in DEFAULTS and FROM in lora]:
        lines.append(f"`from` already defines {', '.join(others)}; leave out one or the other")
    given = {**DEFAULTS, **lora}
    lines += [*count_problems(rank=given["rank"]), *alpha_problems(given["alpha"])]
    if given["dropout"] != 0:
        lines.append(
            f"dropout should be 0, not {given['dropout']!r}, because adapters change weights and have "
            "no input of their own; for the encoder's dropout, set hidden_dropout_prob"
        )
    targets = given["targets"]
    if not (isinstance(targets, list | tuple) and targets and all(isinstance(t, str) for t in targets)):
        lines.append(f"targets should be a list of names of linear layers, not {targets!r}")
    return [about("lora", f": {line}") for line in lines]


def _hint(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f"; the keys are {', '.join(known)}"


def new_adapters(backbone: Backbone, lora: Mapping[str, Any], seed: int) -> LowRank:
    """Create initial adapters, which change nothing yet, from the setting `lora`.

    Raises:
        ConfigError: if a target matches no linear layer of the encoder.
    """
    given = {**DEFAULTS, **lora}
    layers = linear_layers(backbone)
    # A target is a suffix of a dotted name: `query` for all layers, `0.attention.query` for one.
    matches = {target: {n for n in layers if f".{n}".endswith(f".{target}")} for target in given["targets"]}
    suffixes = sorted({name.rpartition(".")[2] for name in layers})
    raise_any(
        about(
            "lora",
            f": no linear layer of {type(backbone).__name__} is named {target!r}; there are "
            f"{', '.join(suffixes)}{did_you_mean(target, suffixes)}",
        )
        for target, names in matches.items()
        if not names
    )
    chosen = {name: layer for name, layer in layers.items() if name in set().union(*matches.values())}
    return LowRank(chosen, dict.fromkeys(chosen, given["rank"]), float(given["alpha"]), seed)


def linear_layers(backbone: Backbone) -> dict[str, nn.Linear]:
    """Return all linear layers of an encoder by name."""
    return {name: part for name, part in backbone.named_modules() if isinstance(part, nn.Linear)}
