"""Prediction of one row on a CPU: layers bound to their weights, with little Python between the kernels.

A short request spends more time in what finds weights and lays out packed rows than in products. Of one row
there is nothing to lay out. The numbers have the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone.attention import AttentionKind, SelfAttention
from palm.backbone.layer import FeedForward, PostNorm
from palm.backbone.packed_attention import attend
from palm.backbone.packing import Packing, Padded
from palm.core.numerics.weight_cache import Product, current_keeper, num_steps_taken, product_of

Run = Callable[[Tensor, bool], Tensor]
"""Packed tokens [tokens, width], whether only the first token is wanted -> [tokens, width] or [1, width]."""


class BoundLayers:
    """Layers as functions of tokens, as long as nothing in them has changed.

    Args:
        layers: of an encoder.
        dtype: to compute with.

    Attributes:
        runs: one a layer; None where some layer is of a kind that is not known here.
    """

    def __init__(self, layers: nn.ModuleList, dtype: torch.dtype) -> None:
        self._modules = list(layers.modules())
        parts = [
            (owner._modules, name, part) for owner in self._modules for name, part in owner._modules.items()
        ]
        weights = [
            (owner._parameters, name, weight)
            for owner in self._modules
            for name, weight in owner._parameters.items()
        ]
        self._places: list[tuple[Mapping[str, object], str, object]] = [*parts, *weights]
        known = all(map(_is_plain, layers)) and not any(w is None or w.is_inference() for _, _, w in weights)
        self.runs = (
            [_bound(layer, dtype) for layer in layers if isinstance(layer, PostNorm)] if known else None
        )
        self._weights = (
            [(w, w._version, w.data_ptr()) for _, _, w in weights if w is not None] if known else []
        )
        self._steps = num_steps_taken()

    def is_current(self) -> bool:
        """Whether all modules and weights are those of before."""
        return (
            self._steps == num_steps_taken()
            and all(place.get(name) is value for place, name, value in self._places)
            and all(w._version == version and w.data_ptr() == start for w, version, start in self._weights)
        )

    def is_undisturbed(self) -> bool:
        """Whether nobody listens to a module or has put it into training mode."""
        return not any(
            part.training or part._forward_hooks or part._forward_pre_hooks for part in self._modules
        )


def through_one_row(
    layers: nn.ModuleList, tokens: Tensor, packing: Packing, first_only: bool
) -> Tensor | None:
    """What the last of the layers gives for one row that is predicted on a CPU; None for anything else.

    Args:
        layers: of an encoder; a list that lives as long as it does.
        tokens: what goes into the first of them, [tokens, width].
        packing: of the batch.
        first_only: ask the last layer only for the first token.
    """
    kept = current_keeper()
    if kept is None or len(packing.mask) != 1 or tokens.device.type != "cpu" or isinstance(packing, Padded):
        return None
    bound = kept.held(layers, tokens.dtype, lambda: BoundLayers(layers, tokens.dtype))
    if bound.runs is None or not bound.is_undisturbed():
        return None
    *lower, last = bound.runs
    for run in lower:
        tokens = run(tokens, False)
    return last(tokens, first_only)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is of the one kind that `_bound` computes."""
    if type(layer) is not PostNorm or layer._compiled_call_impl is not None:
        return False
    attention, ffn = layer.attention, layer.ffn
    products = (attention.query, attention.key, attention.value, attention.output, ffn.inner, ffn.outer)
    return (
        type(attention) is SelfAttention
        and attention.kind == AttentionKind()
        and attention.attend is attend
        and type(ffn) is FeedForward
        and all(type(product) is nn.Linear for product in products)
        and all(type(norm) is nn.LayerNorm for norm in (layer.attention_norm, layer.ffn_norm))
    )


def _bound(layer: PostNorm, dtype: torch.dtype) -> Run:
    attention, ffn, heads = layer.attention, layer.ffn, layer.attention.num_heads
    thirds = (attention.query, attention.key, attention.value)
    is_cast = attention.query.weight.dtype != dtype

    @functools.cache
    def product(*layers: nn.Linear) -> Product:
        if is_cast:
            return product_of(layers, dtype)
        (only,) = layers
        return lambda tokens: F.linear(tokens, only.weight, only.bias)

    def norm_of(norm: nn.LayerNorm) -> Product:
        shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda tokens: torch.layer_norm(tokens, shape, weight, bias, eps)

    output, inner, outer = map(product, (attention.output, ffn.inner, ffn.outer))
    first_norm, second_norm, activation = (
        norm_of(layer.attention_norm),
        norm_of(layer.ffn_norm),
        ffn.activation,
    )

    def run(tokens: Tensor, first_only: bool) -> Tensor:
        asking = tokens[:1] if first_only else tokens
        # As `SelfAttention`: one product where the matrices are cast, and joined, once for all.
        if is_cast and not first_only:
            given = product(*thirds)(tokens).chunk(3, dim=-1)
        else:
            given = tuple(
                product(each)(part) for each, part in zip(thirds, (asking, tokens, tokens), strict=True)
            )
        q, k, v = (part.view(1, -1, heads, part.shape[-1] // heads).transpose(1, 2) for part in given)
        gathered = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)[0]
        residual = first_norm(asking + output(gathered))
        return second_norm(residual + outer(activation(inner(residual))))

    return run
