"""Encoder layers with post- or pre-normalization, and their feed-forward networks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from palm.backbone.attention import SelfAttention
from palm.backbone.dropout import Dropout
from palm.backbone.packing import Packing
from palm.core.numerics.layers import ACTIVATIONS, layer_norm, linear


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3).

    Args:
        width: width of the tokens, in and out.
        inner_width: width between the layers.
        hidden_act: name of the activation.
    """

    def __init__(self, width: int, inner_width: int, hidden_act: str) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner_width)
        self.outer = nn.Linear(inner_width, width)
        self.activation = ACTIVATIONS[hidden_act]

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, width] to [tokens, width]."""
        return linear(self.activation(linear(tokens, self.inner)), self.outer)


class GatedFeedForward(FeedForward):
    """`FeedForward` whose inner values are multiplied by those of a third linear layer (GLU).

    Source: Shazeer, 2020, arXiv:2002.05202, equation 6, with any activation.
    """

    def __init__(self, width: int, inner_width: int, hidden_act: str) -> None:
        super().__init__(width, inner_width, hidden_act)
        self.gate = nn.Linear(width, inner_width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, width] to [tokens, width]."""
        inner, gate = linear(tokens, self.inner, self.gate).chunk(2, dim=-1)
        return linear(self.activation(inner) * gate, self.outer)


class PostNorm(nn.Module):
    """Self-attention, then a feed-forward network, each followed by a residual sum and a layer norm.

    Args:
        attention: the first sublayer.
        ffn: the second sublayer.
        width: width of the tokens, in and out.
        layer_norm_eps: added to the variance in layer norms.
        dropout_prob: dropout on the output of each sublayer.

    Attributes:
        needs_final_norm: True if the encoder must normalize the output of the last layer.
        casts_its_parameters: True if all parameters are used in the dtype of the tokens when norms are cast;
            FSDP may then communicate them in this dtype.

    Source: Vaswani et al., 2017; Devlin et al., 2018.
    """

    needs_final_norm: ClassVar[bool] = False
    casts_its_parameters: ClassVar[bool] = True

    def __init__(
        self,
        attention: SelfAttention,
        ffn: FeedForward,
        *,
        width: int,
        layer_norm_eps: float,
        dropout_prob: float,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width, eps=layer_norm_eps)
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(width, eps=layer_norm_eps)
        self.dropout = Dropout(dropout_prob)

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [batch, width] if `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        attended = self.dropout(self.attention(tokens, packing, first_only))
        residual = layer_norm(residual + attended, self.attention_norm)
        return layer_norm(residual + self.dropout(self.ffn(residual)), self.ffn_norm)


class PreNorm(PostNorm):
    """Layer with the norms before the sublayers; residual sums are not normalized.

    Source: Xiong et al., 2020, arXiv:2002.04745.
    """

    needs_final_norm = True

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [batch, width] if `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        normalized = layer_norm(tokens, self.attention_norm)
        residual = residual + self.dropout(self.attention(normalized, packing, first_only))
        output: Tensor = residual + self.dropout(self.ffn(layer_norm(residual, self.ffn_norm)))
        return output
