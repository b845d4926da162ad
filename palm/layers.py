"""What encoders and output layers have in common: activations by name, and how weights start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.registry import did_you_mean

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
"""`hidden_act` of a BERT configuration -> the function. `gelu` is the exact form with erf."""


def activation_problems(name: str) -> list[str]:
    """A line if no activation has this name."""
    if name in ACTIVATIONS:
        return []
    known = ", ".join(ACTIVATIONS)
    hint = did_you_mean(str(name), ACTIVATIONS)
    return [f"hidden_act: no activation is called {name!r}; known: {known}{hint}"]


def init_weights(module: nn.Module, initializer_range: float) -> None:
    """Start all of `module`: weights from a normal cut at two sigma, biases 0, layer norms 1 and 0.

    Args:
        module: linear layers, embeddings and layer norms, at any depth.
        initializer_range: sigma of the normal.

    Source: Devlin et al., 2018, BERT's published program.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            cut = 2 * initializer_range
            nn.init.trunc_normal_(part.weight, std=initializer_range, a=-cut, b=cut)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)
