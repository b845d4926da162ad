"""RoBERTa: BERT's encoder with one segment, and positions that begin behind the padding's."""

from __future__ import annotations

from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Shape, Table
from palm.core.checks import raise_any


@BACKBONES.register("roberta")
class RoBERTa(Encoder):
    """The encoder of Liu et al., 2019 (arXiv:1907.11692), and of XLM-R.

    Every token belongs to segment 0. Token number 0 has row `pad_token_id + 1` of the position
    table: the rows before belong to padding.

    Args:
        hidden_size: width of every token's vector.
        num_hidden_layers: number of layers.
        num_attention_heads: heads per layer; it divides `hidden_size`.
        vocab_size: number of tokens in the vocabulary.
        max_position_embeddings: rows of the position table; the longest sequence has
            `pad_token_id + 1` tokens less.
        type_vocab_size: rows of the segment table, of which the first is used.
        hidden_act: activation inside the feed-forward networks.
        hidden_dropout_prob: dropout on embeddings and on what each sublayer adds.
        attention_probs_dropout_prob: dropout on attention weights.
        initializer_range: sigma of the normal that weights start from.
        intermediate_size: inner width of the feed-forward networks; 4 x `hidden_size` where None.
        layer_norm_eps: added to the variance in layer norms.
        pad_token_id: the padding's id in the vocabulary, and the padding's row among the positions.

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
        type_vocab_size: int = 1,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        intermediate_size: int | None = None,
        layer_norm_eps: float = 1e-5,
        pad_token_id: int = 1,
    ) -> None:
        raise_any(_position_problems(pad_token_id, max_position_embeddings))
        positions = Table(
            "position",
            "position_ids",
            "max_position_embeddings",
            max_position_embeddings,
            unused=pad_token_id + 1,
        )
        super().__init__(
            Shape(
                tables=(
                    Table("word", "token_ids", "vocab_size", vocab_size),
                    positions,
                    Table("segment", None, "type_vocab_size", type_vocab_size),
                ),
                hidden_size=hidden_size,
                num_hidden_layers=num_hidden_layers,
                num_attention_heads=num_attention_heads,
                intermediate_size=intermediate_size,
                hidden_act=hidden_act,
                hidden_dropout_prob=hidden_dropout_prob,
                attention_probs_dropout_prob=attention_probs_dropout_prob,
                initializer_range=initializer_range,
                layer_norm_eps=layer_norm_eps,
            )
        )


def _position_problems(pad_token_id: int, rows: int) -> list[str]:
    if 0 <= pad_token_id < rows - 1:
        return []
    return [
        f"pad_token_id: {pad_token_id!r} leaves no position to a token; it should be 0 or more, and below "
        f"max_position_embeddings {rows!r} - 1"
    ]
