"""Multi-head self-attention of packed tokens; the only place where a token sees others."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from palm.backbone.attending import attend, attend_padded
from palm.backbone.packing import Packing, Padded
from palm.core.layers import linear


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
        self.attend: Callable[..., Tensor] = attend
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
        query = self._heads(linear(asking, self.query))
        key, value = self._heads(linear(tokens, self.key)), self._heads(linear(tokens, self.value))
        if isinstance(packing, Padded):
            context = attend_padded(query, key, value, packing.mask)
        else:
            asking_rows = packing.first_only if first_only else packing.sequences
            dropout_prob = self.dropout_prob if self.training else 0.0
            context = self.attend(query, key, value, asking_rows, packing.sequences, dropout_prob)
        return linear(context.flatten(1), self.output)

    def _heads(self, packed: Tensor) -> Tensor:
        """[tokens, width] as [tokens, heads, head_dim]."""
        return packed.view(packed.shape[0], self.num_heads, -1)
