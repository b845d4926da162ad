"""Encoder layers with their feed-forward networks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from palm.backbone.attention import SelfAttention
from palm.backbone.dropout import Dropout
from palm.backbone.packing import Packing
from palm.backbone.shape import Shape
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


class Layer(nn.Module):
    """Self-attention, then a feed-forward network, each followed by a residual sum and a layer norm.

    Attributes:
        casts_its_parameters: True if all parameters are used in the dtype of the tokens when norms are cast;
            FSDP may then communicate them in this dtype.

    Source: Vaswani et al., 2017; Devlin et al., 2018.
    """

    casts_its_parameters: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.attention = SelfAttention(width, shape.num_attention_heads, shape.attention_probs_dropout_prob)
        self.attention_norm = nn.LayerNorm(width, eps=shape.layer_norm_eps)
        self.ffn = FeedForward(width, shape.inner_width, shape.hidden_act)
        self.ffn_norm = nn.LayerNorm(width, eps=shape.layer_norm_eps)
        self.dropout = Dropout(shape.hidden_dropout_prob)

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [batch, width] if `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        attended = self.dropout(self.attention(tokens, packing, first_only))
        residual = layer_norm(residual + attended, self.attention_norm)
        return layer_norm(residual + self.dropout(self.ffn(residual)), self.ffn_norm)
