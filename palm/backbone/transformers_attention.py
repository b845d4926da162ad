"""palm's packed attention as an attention implementation of the `transformers` library."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

from palm.backbone.packed_attention import attend, attend_in_graph
from palm.backbone.packing import Packing, Padded

NAME = "palm_packed"
"""Name of the implementation; the library creates no mask for a name without a mask function."""


@cache
def register() -> None:
    """Register `attend_packed` with the library."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_packed)


def attend_packed(
    module: nn.Module,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    palm_packing: Packing,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **unused: Any,  # noqa: ARG001
) -> tuple[Tensor, None]:
    """Compute attention within each of the packed texts.

    Args:
        module: the library's attention layer.
        query: [1, heads, tokens, head_dim]; [batch, heads, seq, head_dim] in a padded layout.
        key: [1, key_heads, tokens, head_dim]; `heads` is a multiple of `key_heads` (grouped-query attention).
        value: the same shape as `key`.
        attention_mask: None, because `palm_packing` defines which tokens see each other.
        palm_packing: the layout of the tokens, which the encoder passes through all layers.
        scaling: factor of the scores; None for head_dim^-0.5.
        dropout: probability of zeroing an attention weight.
        sliding_window: distance from which on tokens do not see each other.
        unused: other arguments of the library, which do not change attention.

    Returns:
        [1, tokens, heads, head_dim], and None for the weights.
    """
    assert attention_mask is None, "a mask would be ignored"
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    if scaling is not None and scaling != query.shape[-1] ** -0.5:
        query = query * (scaling * query.shape[-1] ** 0.5)
    window = None if sliding_window is None else sliding_window - 1
    if isinstance(palm_packing, Padded):
        q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))
        output = attend_in_graph(q, k, v, palm_packing.keys_bias, window)  # [batch * seq, heads, head_dim]
        return output.view(query.shape[0], -1, *output.shape[1:]), None
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))  # [tokens, heads, head_dim]
    return attend(q, k, v, palm_packing.scope(False, window), dropout)[None], None
