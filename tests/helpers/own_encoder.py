"""An encoder of a user's own, as ModernBERT is built, from the parts that palm has."""

from __future__ import annotations

from palm.backbone.architecture import Architecture
from palm.backbone.attention import AttentionKind
from palm.backbone.encoder import Encoder
from palm.backbone.layer import GatedFeedForward, PreNorm
from palm.backbone.token_encoder import Pooling


class OwnEncoder(Encoder):
    """Rotary positions, norms before the sublayers, gated feed-forward networks, and windows.

    Args:
        window: how far a token sees in most layers.
        global_every: every so many layers, from the lowest, one sees the whole text.
    """

    def __init__(
        self,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        vocab_size: int,
        max_position_embeddings: int,
        window: int = 2,
        *,
        global_every: int = 3,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        intermediate_size: int | None = None,
        layer_norm_eps: float = 1e-5,
        pooling: Pooling = "cls",
    ) -> None:
        whole, near = AttentionKind(None, 160_000.0), AttentionKind(window, 10_000.0)
        super().__init__(
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            vocab_size,
            max_position_embeddings,
            "gelu",
            hidden_dropout_prob,
            attention_probs_dropout_prob,
            initializer_range,
            intermediate_size=intermediate_size,
            layer_norm_eps=layer_norm_eps,
            pooling=pooling,
            parts=Architecture(
                positions=None,
                attention=(whole, *[near] * (global_every - 1)),
                layer=PreNorm,
                feed_forward=GatedFeedForward,
            ),
        )
