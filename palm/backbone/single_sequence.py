"""Prediction of one sequence on a CPU, by layers whose weights are looked up once, with little Python.

One sequence needs no packing. A request of 14 tokens is 1.22 times as fast in bfloat16 (AMX), 1.10 times in
float32, with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone.attention import AttentionKind, SelfAttention
from palm.backbone.layer import FeedForward, PostNorm
from palm.backbone.packing import Packing, Padded
from palm.core.numerics.layers import linear
from palm.core.numerics.weight_cache import Product, active_cache, cached_product


def encode_single(layers: nn.ModuleList, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor | None:
    """Run the layers on one sequence that is predicted on a CPU; return None for any other batch.

    Args:
        layers: of an encoder.
        tokens: input of the first layer, [tokens, width].
        packing: of the batch.
        first_only: ask the last layer only for the first token.
    """
    cache = active_cache()
    if cache is None or len(packing.mask) != 1 or tokens.device.type != "cpu" or isinstance(packing, Padded):
        return None
    key = (id(layers), tokens.dtype)
    bound = cache.get(layers, key, lambda: BoundLayers(layers, tokens.dtype))
    if not bound.is_current():
        cache.clear()
        bound = cache.get(layers, key, lambda: BoundLayers(layers, tokens.dtype))
    return bound(tokens, first_only) if bound.is_usable() else None


class BoundLayers:
    """Layers of an encoder with all weights looked up.

    Args:
        layers: of an encoder.
        dtype: to compute with.
    """

    def __init__(self, layers: nn.ModuleList, dtype: torch.dtype) -> None:
        self._modules = list(layers.modules())
        self._places: list[tuple[Mapping[str, object], str, object]] = [
            (place, name, value)
            for module in self._modules
            for place in (module._modules, module._parameters)
            for name, value in place.items()
        ]
        self._layers: list[_BoundLayer] = []
        # A parameter made in inference mode does not count what is written to it.
        if all(map(_is_plain, layers)) and not any(weight.is_inference() for weight in layers.parameters()):
            self._layers = [_BoundLayer(layer, dtype) for layer in layers if isinstance(layer, PostNorm)]

    def is_current(self) -> bool:
        """True if the layers still consist of the same modules and parameters."""
        return all(place.get(name) is value for place, name, value in self._places)

    def is_usable(self) -> bool:
        """True if the layers are of a known kind, have no hooks and are in evaluation mode."""
        return bool(self._layers) and not any(
            part.training or part._forward_hooks or part._forward_pre_hooks for part in self._modules
        )

    def __call__(self, tokens: Tensor, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [1, width] where `first_only`."""
        *lower, last = self._layers
        for layer in lower:
            tokens = layer(tokens, False)
        return last(tokens, first_only)


class _BoundLayer:
    """`PostNorm.forward` for one sequence."""

    def __init__(self, layer: PostNorm, dtype: torch.dtype) -> None:
        attention = layer.attention
        self.num_heads = attention.num_heads
        # As in `SelfAttention`: one product where the matrices are cast once.
        self.joint = cached_product((attention.query, attention.key, attention.value), dtype)
        self.thirds = (attention.query, attention.key, attention.value)
        self.output = _bound_linear(attention.output, dtype)
        self.inner = _bound_linear(layer.ffn.inner, dtype)
        self.outer = _bound_linear(layer.ffn.outer, dtype)
        self.activation = layer.ffn.activation
        self.attention_norm = _bound_norm(layer.attention_norm)
        self.ffn_norm = _bound_norm(layer.ffn_norm)

    def __call__(self, tokens: Tensor, first_only: bool) -> Tensor:
        asking = tokens[:1] if first_only else tokens
        if self.joint is not None and not first_only:
            parts = self.joint(tokens).chunk(3, dim=-1)
        else:
            query, key, value = self.thirds
            parts = (linear(asking, query), linear(tokens, key), linear(tokens, value))
        q, k, v = (part.view(1, len(part), self.num_heads, -1).transpose(1, 2) for part in parts)
        gathered = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)[0]
        residual = self.attention_norm(asking + self.output(gathered))
        return self.ffn_norm(residual + self.outer(self.activation(self.inner(residual))))


def _is_plain(layer: nn.Module) -> bool:
    """True if a layer is of the one kind that `_BoundLayer` computes."""
    if type(layer) is not PostNorm:
        return False
    attention = layer.attention
    linear_layers = (attention.query, attention.key, attention.value, attention.output)
    parts = [*linear_layers, layer.ffn.inner, layer.ffn.outer, layer.attention_norm, layer.ffn_norm]
    return (
        type(attention) is SelfAttention
        and attention.kind == AttentionKind()
        and type(layer.ffn) is FeedForward
        and all(type(part) in (nn.Linear, nn.LayerNorm) for part in parts)
    )


def _bound_linear(layer: nn.Linear, dtype: torch.dtype) -> Product:
    weight = layer.weight
    bias = layer.bias
    plain = lambda tokens: F.linear(tokens, weight, bias)  # noqa: E731
    return cached_product((layer,), dtype) or plain


def _bound_norm(norm: nn.LayerNorm) -> Product:
    shape = norm.normalized_shape
    weight = norm.weight
    bias = norm.bias
    eps = norm.eps
    return lambda tokens: torch.layer_norm(tokens, shape, weight, bias, eps)
