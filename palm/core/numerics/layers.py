"""Building blocks of encoders and heads: activations, layers in any precision, initialization."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.errors import about
from palm.core.numerics.precision import compute_dtype
from palm.core.numerics.skip_init import skips_init
from palm.core.numerics.weight_cache import cached_product
from palm.core.registry import unknown

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
"""`hidden_act` in a BERT configuration -> function. `gelu` is the exact form with erf."""


def activation_problems(name: str) -> list[str]:
    """Return a line if no activation has this name."""
    if name in ACTIVATIONS:
        return []
    return [about("hidden_act", f": {unknown('activation', name, ACTIVATIONS)}")]


def linear(tokens: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a linear layer with a bias to [..., width], in the dtype of `tokens`."""
    if type(layer).forward is not nn.Linear.forward:  # such as an adapted one
        adapted: Tensor = layer(tokens)
        return adapted
    if product := cached_product((layer,), tokens.dtype):
        return product(tokens)
    return F.linear(tokens, layer.weight.to(tokens.dtype), layer.bias.to(tokens.dtype))


class SharedLinear(nn.Linear):
    """A linear layer with the parameters of another one, for subclasses that compute it differently."""

    def __init__(self, shared: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features = shared.in_features
        self.out_features = shared.out_features
        self._parameters = shared._parameters


class CachedLinear(SharedLinear):
    """A linear layer that uses the weight cache in prediction; replaces `nn.Linear` in other libraries."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply the layer, in the dtype of autocast if that is enabled."""
        dtype = compute_dtype(tokens)
        product = cached_product((self,), dtype)
        return super().forward(tokens) if product is None else product(tokens.to(dtype))


def casts_norms(where: Tensor) -> bool:
    """True if layer norms on this device need parameters in the dtype of the input: on a GPU."""
    return where.is_cuda


def layer_norm(tokens: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Apply a layer norm in the dtype of `tokens`; mean and variance are always float32."""
    dtype = tokens.dtype if casts_norms(tokens) else norm.weight.dtype
    weight = norm.weight.to(dtype)
    return F.layer_norm(tokens, norm.normalized_shape, weight, norm.bias.to(dtype), norm.eps)


def init_weights(module: nn.Module, initializer_range: float) -> None:
    """Initialize weights from a normal truncated at two sigma, biases with 0, layer norms with 1 and 0.

    Within `skip_init`, nothing is initialized.

    Args:
        module: its linear layers, embeddings and layer norms are initialized, at any depth.
        initializer_range: sigma of the distribution.

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
