"""Multi-head self-attention on packed tokens; the only place where sequences see each other's length."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone.packing import Packing
from palm.layers import linear


class SelfAttention(nn.Module):
    """Scaled dot-product attention between the tokens of each sequence (Vaswani et al., 2017).

    Args:
        width: of the tokens, in and out.
        num_heads: divides `width`.
        dropout_prob: probability of zeroing an attention weight while training.
    """

    def __init__(self, width: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout_prob = dropout_prob
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """What every token gathers from its sequence.

        Args:
            tokens: packed, [tokens, width].
            packing: where they belong.
            first_only: ask only for the first token of every row.

        Returns:
            [tokens, width], or [batch, width] where `first_only`.
        """
        asking = tokens[packing.first] if first_only else tokens
        query = linear(asking, self.query)
        query = query[:, None] if first_only else packing.unpack(query)  # [batch, queries, width]
        context = attend(
            self._heads(query),
            self._heads(packing.unpack(linear(tokens, self.key))),
            self._heads(packing.unpack(linear(tokens, self.value))),
            packing.key_mask,
            self.dropout_prob if self.training else 0.0,
        )
        context = context.transpose(1, 2).flatten(2)  # [batch, queries, width]
        return linear(context[:, 0] if first_only else packing.pack(context), self.output)

    def _heads(self, padded: Tensor) -> Tensor:
        """[batch, seq, width] as [batch, heads, seq, head_dim]."""
        batch, seq, width = padded.shape
        return padded.view(batch, seq, self.num_heads, width // self.num_heads).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout_prob: float) -> Tensor:
    """softmax(query · key / sqrt(head_dim)) · value, looking only where `key_mask` is True.

    Torch's fused kernel does it, except on a CPU with gradients, where its backward is several
    times slower than plain matrix products.

    Args:
        query: [batch, heads, queries, head_dim].
        key: [batch, heads, seq, head_dim].
        value: [batch, heads, seq, head_dim].
        key_mask: bool[batch, 1, 1, seq], at least one True per row; None for everywhere.
        dropout_prob: probability of zeroing an attention weight.

    Returns:
        [batch, heads, queries, head_dim].
    """
    if query.is_cuda or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, key, value, key_mask, dropout_prob)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3)  # [batch, heads, queries, seq]
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask, -math.inf)
    return F.dropout(scores.softmax(-1), dropout_prob) @ value
