"""DistilBERT: BERT's encoder without segments."""

from __future__ import annotations

from typing import ClassVar

from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Shape, Table


@BACKBONES.register("distilbert")
class DistilBERT(Encoder):
    """The encoder of Sanh et al., 2019 (arXiv:1910.01108).

    Published weights have no pooler. Ours is the layer that Hugging Face's DistilBERT classifier
    puts in its place, linear and ReLU.

    Args:
        hidden_size: width of every token's vector.
        num_hidden_layers: number of layers.
        num_attention_heads: heads per layer; it divides `hidden_size`.
        vocab_size: number of tokens in the vocabulary.
        max_position_embeddings: longest sequence, in tokens.
        hidden_act: activation inside the feed-forward networks.
        hidden_dropout_prob: dropout on embeddings and on what each sublayer adds.
        attention_probs_dropout_prob: dropout on attention weights.
        initializer_range: sigma of the normal that weights start from.
        intermediate_size: inner width of the feed-forward networks; 4 x `hidden_size` where None.
        layer_norm_eps: added to the variance in layer norms.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    aliases: ClassVar[dict[str, str]] = {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }

    def __init__(
        self,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        vocab_size: int,
        max_position_embeddings: int,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        intermediate_size: int | None = None,
        layer_norm_eps: float = 1e-12,
    ) -> None:
        tables = (
            Table("word", "token_ids", "vocab_size", vocab_size),
            Table("position", "position_ids", "max_position_embeddings", max_position_embeddings),
        )
        super().__init__(
            Shape(
                tables=tables,
                hidden_size=hidden_size,
                num_hidden_layers=num_hidden_layers,
                num_attention_heads=num_attention_heads,
                intermediate_size=intermediate_size,
                hidden_act=hidden_act,
                hidden_dropout_prob=hidden_dropout_prob,
                attention_probs_dropout_prob=attention_probs_dropout_prob,
                initializer_range=initializer_range,
                layer_norm_eps=layer_norm_eps,
                pooler_act="relu",
            )
        )
