"""Multi-head self-attention of packed tokens; the only module in which tokens see each other."""

from __future__ import annotations

from torch import Tensor, nn

from palm.backbone.packed_attention import attend, attend_in_graph
from palm.backbone.packing import Packing, Padded
from palm.core.numerics.layers import linear
from palm.core.numerics.weight_cache import cached_product


class SelfAttention(nn.Module):
    """Scaled dot-product attention between the tokens of each sequence (Vaswani et al., 2017).

    Args:
        width: width of the tokens, in and out.
        num_heads: number of heads; `width` is a multiple of it.
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
        """Compute attention within each sequence.

        Args:
            tokens: packed, [tokens, width].
            packing: layout of the tokens.
            first_only: compute only the first token of every row.

        Returns:
            [tokens, width], or [batch, width] if `first_only`.
        """
        asking = tokens[packing.first] if first_only else tokens
        joint = None if first_only else cached_product((self.query, self.key, self.value), tokens.dtype)
        if joint is not None:
            # One product if the joined matrix is cached; training would have to join it at every step.
            parts = joint(tokens).chunk(3, dim=-1)
        else:
            parts = (linear(asking, self.query), linear(tokens, self.key), linear(tokens, self.value))
        query, key, value = (part.view(part.shape[0], self.num_heads, -1) for part in parts)
        if isinstance(packing, Padded):
            context = attend_in_graph(query, key, value, packing.keys_bias, None)
        else:
            dropout_prob = self.dropout_prob if self.training else 0.0
            scope = packing.scope(first_only, None)
            context = attend(query, key, value, scope, dropout_prob)
        return linear(context.flatten(1), self.output)
