"""The layers that encoders are stacked from: where they normalize, and their feed-forward networks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from palm.backbone.attention import SelfAttention
from palm.backbone.dropout import Dropout
from palm.backbone.packing import Packing
from palm.core.numerics.fused_cast import cast_together
from palm.core.numerics.layers import ACTIVATIONS, casts_norms, layer_norm, linear
from palm.distributed.group import num_ranks
from palm.distributed.shards import local_shard


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3).

    Args:
        width: of the tokens, in and out.
        inner_width: between the layers.
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
    """`FeedForward` whose inner values are multiplied by those of a third linear layer, the gate.

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
    """Self-attention, then a feed-forward network; each added to its input, and the sum normalized.

    Args:
        attention: the first sublayer.
        ffn: the second.
        width: of the tokens, in and out.
        layer_norm_eps: added to the variance in layer norms.
        dropout_prob: dropout on what each sublayer adds.

    Attributes:
        needs_final_norm: whether the encoder normalizes what the last layer gives.
        casts_its_parameters: where norms are cast, it computes with all of them in the dtype of its tokens;
            fsdp may send them in that.

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
        """[tokens, width] to [tokens, width], or to [batch, width] where `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        gathered = self.dropout(self.attention(tokens, packing, first_only))
        residual = layer_norm(residual + gathered, self.attention_norm)
        return layer_norm(residual + self.dropout(self.ffn(residual)), self.ffn_norm)


class PreNorm(PostNorm):
    """Each sublayer takes its input normalized, and is added to the input as it was.

    Source: Xiong et al., 2020, arXiv:2002.04745.
    """

    needs_final_norm = True

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [batch, width] where `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        normalized = layer_norm(tokens, self.attention_norm)
        residual = residual + self.dropout(self.attention(normalized, packing, first_only))
        output: Tensor = residual + self.dropout(self.ffn(layer_norm(residual, self.ffn_norm)))
        return output


def casting(
    layers: Iterable[nn.Module], tokens: Tensor, *, one_of_several_ranks: bool = False
) -> AbstractContextManager[None]:
    """Within it, what layers cast to the dtype of tokens on their way through them is cast already.

    Of several ranks, which send gradients of one layer while those of others are still computed, each layer
    does so for itself, where its parameters are whole.
    """
    other_way = (num_ranks() > 1) != one_of_several_ranks
    if tokens.dtype == torch.float32 or not torch.is_grad_enabled() or other_way:
        return nullcontext()
    kinds = (nn.Linear, nn.LayerNorm) if casts_norms(tokens) else (nn.Linear,)
    parts = (part for layer in layers for part in layer.modules() if isinstance(part, kinds))
    parameters = (parameter for part in parts for parameter in part.parameters())
    return cast_together((each for each in parameters if local_shard(each) is each), tokens.dtype)


def call_layer(layer: nn.Module, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
    """Call a layer of an encoder; see `PostNorm.forward`."""
    with casting([layer], tokens, one_of_several_ranks=True):
        output: Tensor = layer(tokens, packing, first_only)
    return output
