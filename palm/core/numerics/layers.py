"""Parts of encoders and heads: activations, layers in any precision, initial weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.numerics.fused_cast import cast
from palm.core.numerics.precision import compute_dtype
from palm.core.numerics.skip_init import skips_init
from palm.core.numerics.weight_cache import cached_product
from palm.core.registry import did_you_mean

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


def linear(tokens: Tensor, *layers: nn.Linear) -> Tensor:
    """Linear layers of one input as one product, in the dtype of `tokens`; parameters may have another.

    Args:
        tokens: [..., width].
        layers: each with a bias.

    Returns:
        Their outputs side by side, [..., sum of the layers' outputs].
    """
    if product := cached_product(layers, tokens.dtype):
        return product(tokens)
    weights = [cast(layer.weight, tokens.dtype) for layer in layers]
    biases = [cast(layer.bias, tokens.dtype) for layer in layers]
    if len(layers) == 1:
        return F.linear(tokens, weights[0], biases[0])
    return F.linear(tokens, torch.cat(weights), torch.cat(biases))


class CachedLinear(nn.Linear):
    """A linear layer of another library that predicts with the weight cache."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute what `nn.Linear` does, under autocast in the dtype of that."""
        dtype = compute_dtype(tokens)
        product = cached_product((self,), dtype)
        return super().forward(tokens) if product is None else product(tokens.to(dtype))


def casts_norms(where: Tensor) -> bool:
    """True on a device where layer norms need parameters in the dtype of tokens: a GPU, unlike a CPU."""
    return where.is_cuda


def layer_norm(tokens: Tensor, norm: nn.LayerNorm) -> Tensor:
    """A layer norm in the dtype of `tokens`; mean and variance are float32 in any."""
    dtype = tokens.dtype if casts_norms(tokens) else norm.weight.dtype
    weight = cast(norm.weight, dtype)
    bias = cast(norm.bias, dtype)
    return F.layer_norm(tokens, norm.normalized_shape, weight, bias, norm.eps)


def init_weights(module: nn.Module, initializer_range: float) -> None:
    """Initialize `module`: weights from a normal cut at two sigma, biases 0, layer norms 1 and 0.

    Within `skip_init`, nothing is initialized.

    Args:
        module: linear layers, embeddings and layer norms, at any depth.
        initializer_range: sigma of the normal.

    Source: Devlin et al., 2018, BERT's published program.
    """
    for part in () if skips_init() else module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            cut = 2 * initializer_range
            nn.init.trunc_normal_(part.weight, std=initializer_range, a=-cut, b=cut)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)
