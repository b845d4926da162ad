"""ELECTRA: BERT's encoder on embeddings of a width of their own."""

from __future__ import annotations

from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Shape, Table


@BACKBONES.register("electra")
class ELECTRA(Encoder):
    """The encoder of Clark et al., 2020 (arXiv:2003.10555), discriminator or generator.

    Published weights have no pooler. Ours is the layer that Google's and Hugging Face's ELECTRA
    classifiers put in its place, linear and GELU.

    Args:
        hidden_size: width of every token's vector.
        num_hidden_layers: number of layers.
        num_attention_heads: heads per layer; it divides `hidden_size`.
        vocab_size: number of tokens in the vocabulary.
        max_position_embeddings: longest sequence, in tokens.
        type_vocab_size: number of segments.
        hidden_act: activation inside the feed-forward networks.
        hidden_dropout_prob: dropout on embeddings and on what each sublayer adds.
        attention_probs_dropout_prob: dropout on attention weights.
        initializer_range: sigma of the normal that weights start from.
        intermediate_size: inner width of the feed-forward networks; 4 x `hidden_size` where None.
        layer_norm_eps: added to the variance in layer norms.
        embedding_size: width of the embedding tables; where it is not `hidden_size`, a linear layer
            lies between. `hidden_size` where None.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    def __init__(
        self,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        vocab_size: int,
        max_position_embeddings: int,
        type_vocab_size: int = 2,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        intermediate_size: int | None = None,
        layer_norm_eps: float = 1e-12,
        embedding_size: int | None = None,
    ) -> None:
        tables = (
            Table("word", "token_ids", "vocab_size", vocab_size),
            Table("position", "position_ids", "max_position_embeddings", max_position_embeddings),
            Table("segment", "segment_ids", "type_vocab_size", type_vocab_size),
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
                embedding_size=embedding_size,
                pooler_act="gelu",
            )
        )
