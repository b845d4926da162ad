"""Multi-head self-attention of packed tokens; the only module in which tokens see each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from palm.backbone.packed_attention import attend, attend_in_graph
from palm.backbone.packing import Packing, Padded
from palm.core.errors import ConfigError
from palm.core.numerics.layers import linear
from palm.core.numerics.weight_cache import cached_product


@dataclass(frozen=True)
class AttentionKind:
    """The kind of attention in one layer.

    Args:
        window: number of tokens that a token sees on either side; None for its whole sequence.
        rotary_base: base of the rotation angles of queries and keys, see `rotate`; None for no rotation.
    """

    window: int | None = None
    rotary_base: float | None = None


class SelfAttention(nn.Module):
    """Scaled dot-product attention between the tokens of each sequence (Vaswani et al., 2017).

    Args:
        width: width of the tokens, in and out.
        num_heads: number of heads; `width` is a multiple of it.
        dropout_prob: probability of zeroing an attention weight while training.
        kind: window and rotary positions.

    Raises:
        ConfigError: if rotary positions are combined with heads of odd width.
    """

    def __init__(self, width: int, num_heads: int, dropout_prob: float, kind: AttentionKind) -> None:
        super().__init__()
        if kind.rotary_base is not None and width // num_heads % 2:
            raise ConfigError(
                f"num_attention_heads: rotary positions need heads of even width, not {width // num_heads}"
            )
        self.num_heads = num_heads
        self.kind = kind
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
        if self.kind.rotary_base is not None:
            positions = packing.position_ids
            assert positions is not None
            query = rotate(
                query, positions[packing.first] if first_only else positions, self.kind.rotary_base
            )
            key = rotate(key, positions, self.kind.rotary_base)
        if isinstance(packing, Padded):
            context = attend_in_graph(query, key, value, packing.keys_bias, self.kind.window)
        else:
            dropout_prob = self.dropout_prob if self.training else 0.0
            scope = packing.scope(first_only, self.kind.window)
            context = attend(query, key, value, scope, dropout_prob)
        return linear(context.flatten(1), self.output)


def rotate(vectors: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate every pair of a vector's coordinates by an angle that grows with the token's position.

    The product of a query and a key then depends on their distance. Coordinate i forms a pair with
    i + head_dim / 2, as in Hugging Face's code, and is rotated by `position · base^(-2i / head_dim)`.

    Args:
        vectors: [tokens, heads, head_dim].
        positions: int64[tokens].
        base: 10000 in the source.

    Source: Su et al., 2021, arXiv:2104.09864, section 3.2.2.
    """
    half = vectors.shape[-1] // 2
    # Also in float32 for bfloat16 vectors, because bfloat16 cannot distinguish positions 256 and 257.
    exponents = torch.arange(half, dtype=torch.float32, device=vectors.device) / half
    angles = positions[:, None, None] * base**-exponents  # [tokens, 1, half]
    cos = angles.cos()
    sin = angles.sin()
    first, second = vectors.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(vectors.dtype)
