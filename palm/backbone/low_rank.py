"""Low-rank changes of an encoder's linear layers, of one task's own (LoRA)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from palm.backbone.base import Backbone
from palm.core.checks import count_problems, positive_problems, raise_any, type_problems
from palm.core.registry import did_you_mean

M = TypeVar("M", bound=nn.Module)


class LowRank(nn.Module):
    """Changes of linear layers: a task's weight is `W + alpha / rank · B A`, with the shared W.

    Weights are changed, not outputs: every way to compute with them, the cached casts and joined products
    among them, is that of the encoder without adapters, and what is trained is what is saved.

    Args:
        layers: name of a layer in the encoder -> the layer.
        ranks: name -> rank of its change.
        alpha: scale of all changes.
        seed: decides A, which is uniform within `1 / sqrt(in)` as in PEFT; B is 0, so that outputs are those
            of the encoder to the bit.

    Source: Hu et al., 2021, arXiv:2106.09685, section 4.1.
    """

    def __init__(
        self, layers: Mapping[str, nn.Linear], ranks: Mapping[str, int], alpha: float, seed: int
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.names = list(layers)
        source = torch.Generator().manual_seed(seed)  # of its own: heads begin as they would without
        self.down = nn.ParameterList()
        self.up = nn.ParameterList()
        for name, layer in layers.items():
            limit = 1 / math.sqrt(layer.in_features)
            down = torch.empty(ranks[name], layer.in_features).uniform_(-limit, limit, generator=source)
            self.down.append(nn.Parameter(down.to(layer.weight.device)))
            self.up.append(nn.Parameter(layer.weight.new_zeros(layer.out_features, ranks[name])))

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Name of a layer -> its A, [rank, in], and B, [out, rank]."""
        return {name: (down, up) for name, down, up in zip(self.names, self.down, self.up, strict=True)}

    def applied_to(self, backbone: Backbone) -> Backbone:
        """An encoder of the same parts, but for the changed weights; gradients reach W, A and B."""
        weights = {}
        for name, (down, up) in self.factors().items():
            shared = backbone.get_submodule(name).weight
            assert isinstance(shared, Tensor)
            # One product and one sum; its result is as large as W, and lives until the backward pass.
            weights[f"{name}.weight"] = torch.addmm(shared, up, down, alpha=self.alpha / len(down))
        return with_parameters(backbone, weights)

    @torch.no_grad()
    def merged_into(self, backbone: Backbone) -> Backbone:
        """The same encoder as it is now, to predict and to be saved: its changed weights are parameters."""
        merged = self.applied_to(backbone)
        for name in self.names:
            layer = merged.get_submodule(name)
            assert isinstance(layer.weight, Tensor)
            layer.weight = nn.Parameter(layer.weight, requires_grad=False)
        return merged


def with_parameters(module: M, replaced: Mapping[str, Tensor]) -> M:
    """A module of the same parts, but for the parameters that are replaced, by their names."""
    # Shallow copies along the way to them; a layer's other tensors stay those of the original.
    own = copy.copy(module)
    below: dict[str, dict[str, Tensor]] = {}
    for name, value in replaced.items():
        child, _, rest = name.partition(".")
        below.setdefault(child, {})[rest] = value
    direct = {name: own_value[""] for name, own_value in below.items() if "" in own_value}
    own._parameters = {**module._parameters, **direct} if direct else module._parameters  # type: ignore[dict-item]
    own._modules = dict(module._modules)
    for child in below.keys() - direct.keys():
        part = module._modules[child]
        assert part is not None
        own._modules[child] = with_parameters(part, below[child])
    return own


DEFAULTS: dict[str, Any] = {"rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": ["query", "value"]}
"""The keys of the setting `lora` that say what its adapters are, and their values where absent."""

FROM = "from"
"""The key that names a directory of adapters in PEFT's format, in place of the others."""


def lora_problems(lora: Any) -> list[str]:
    """Check the value of the setting `lora`; a line per problem."""
    if not isinstance(lora, Mapping):
        return type_problems(Mapping, "a mapping as {rank: 8, alpha: 16, targets: [query, value]}", lora=lora)
    known = [*DEFAULTS, FROM]
    unknown = [name for name in lora if name not in known]
    problems = [f"lora: nothing uses {name!r}{_hint(str(name), known)}" for name in unknown]
    if others := [name for name in lora if name in DEFAULTS and FROM in lora]:
        problems.append(f"lora: the directory of `from` says what {', '.join(others)} is; leave it out")
    given = {**DEFAULTS, **lora}
    problems += [f"lora: {line}" for line in count_problems(rank=given["rank"])]
    problems += [f"lora: {line}" for line in positive_problems(alpha=given["alpha"])]
    if given["dropout"] != 0:
        problems.append(
            f"lora: dropout should be 0, not {given['dropout']!r}: adapters change weights, and have no "
            "input of their own; the encoder's is hidden_dropout_prob"
        )
    targets = given["targets"]
    if not (isinstance(targets, list | tuple) and targets and all(isinstance(t, str) for t in targets)):
        problems.append(f"lora: targets should be a list of names of linear layers, not {targets!r}")
    return problems


def _hint(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f"; it takes {', '.join(known)}"


def new_adapters(backbone: Backbone, lora: Mapping[str, Any], seed: int) -> LowRank:
    """Adapters that change nothing yet, by the setting `lora`.

    Raises:
        ConfigError: the encoder has no such layers.
    """
    given = {**DEFAULTS, **lora}
    layers = linear_layers(backbone)
    # A target may be the end of a dotted name: `query` for all, `0.attention.query` for one layer's.
    called = {target: {n for n in layers if f".{n}".endswith(f".{target}")} for target in given["targets"]}
    ends = sorted({name.rpartition(".")[2] for name in layers})
    raise_any(
        f"lora: no linear layer of {type(backbone).__name__} is called {target!r}; there are "
        f"{', '.join(ends)}{did_you_mean(target, ends)}"
        for target, names in called.items()
        if not names
    )
    chosen = {name: layer for name, layer in layers.items() if name in set().union(*called.values())}
    return LowRank(chosen, dict.fromkeys(chosen, given["rank"]), float(given["alpha"]), seed)


def linear_layers(backbone: Backbone) -> dict[str, nn.Linear]:
    """All linear layers of an encoder by name."""
    return {name: part for name, part in backbone.named_modules() if isinstance(part, nn.Linear)}
