"""ERNIE: BERT's encoder with a fourth embedding, of the task."""

from __future__ import annotations

from typing import ClassVar

from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Shape, Table


@BACKBONES.register("ernie")
class ERNIE(Encoder):
    """The encoder of ERNIE 1.0 and 2.0 (Sun et al., 2019, arXiv:1904.09223 and arXiv:1907.12412).

    Args:
        hidden_size: width of every token's vector.
        num_hidden_layers: number of layers.
        num_attention_heads: heads per layer; it divides `hidden_size`.
        vocab_size: number of tokens in the vocabulary.
        max_position_embeddings: longest sequence, in tokens.
        sent_type_vocab_size: number of sentence types (segments).
        task_type_vocab_size: number of tasks that `task_ids` can name.
        hidden_act: activation inside the feed-forward networks.
        hidden_dropout_prob: dropout on embeddings and on what each sublayer adds.
        attention_probs_dropout_prob: dropout on attention weights.
        initializer_range: sigma of the normal that weights start from.
        intermediate_size: inner width of the feed-forward networks; 4 x `hidden_size` where None.
        layer_norm_eps: added to the variance in layer norms.
        use_task_id: whether there are task embeddings; ERNIE 1.0 has none. Without them the
            backbone does not take `task_ids`.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    aliases: ClassVar[dict[str, str]] = {
        "type_vocab_size": "sent_type_vocab_size",
        "use_task_emb": "use_task_id",
    }

    def __init__(
        self,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        vocab_size: int,
        max_position_embeddings: int,
        sent_type_vocab_size: int = 2,
        task_type_vocab_size: int = 3,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        intermediate_size: int | None = None,
        layer_norm_eps: float = 1e-12,
        use_task_id: bool = True,
    ) -> None:
        tables = [
            Table("word", "token_ids", "vocab_size", vocab_size),
            Table("position", "position_ids", "max_position_embeddings", max_position_embeddings),
            Table("segment", "segment_ids", "sent_type_vocab_size", sent_type_vocab_size),
        ]
        if use_task_id:
            tables.append(Table("task", "task_ids", "task_type_vocab_size", task_type_vocab_size))
        super().__init__(
            Shape(
                tables=tuple(tables),
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
