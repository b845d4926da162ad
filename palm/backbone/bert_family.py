"""BERT and its variants, each described by its differences from BERT; common settings: see `Encoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from palm.backbone.base import BACKBONES, Pooling, Shape, Table
from palm.backbone.encoder import Encoder


@BACKBONES.register("bert")
class BERT(Encoder):
    """The encoder of Devlin et al., 2018 (arXiv:1810.04805).

    Args:
        type_vocab_size: number of segments.
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
        pooling: Pooling = "cls",
    ) -> None:
        segments = Table("segment", "segment_ids", "type_vocab_size", type_vocab_size)
        super().__init__(
            Shape(
                hidden_size,
                num_hidden_layers,
                num_attention_heads,
                vocab_size,
                max_position_embeddings,
                hidden_act,
                hidden_dropout_prob,
                attention_probs_dropout_prob,
                initializer_range,
                intermediate_size=intermediate_size,
                layer_norm_eps=layer_norm_eps,
                other_tables=(segments,),
            ),
            pooling,
        )


@BACKBONES.register("distilbert")
class DistilBERT(Encoder):
    """The encoder of Sanh et al., 2019 (arXiv:1910.01108).

    Published weights have no pooler. It is replaced by the linear layer and ReLU of Hugging Face's DistilBERT
    classifier.
    """

    aliases: ClassVar[Mapping[str, str]] = {
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
        pooling: Pooling = "cls",
    ) -> None:
        super().__init__(
            Shape(
                hidden_size,
                num_hidden_layers,
                num_attention_heads,
                vocab_size,
                max_position_embeddings,
                hidden_act,
                hidden_dropout_prob,
                attention_probs_dropout_prob,
                initializer_range,
                intermediate_size=intermediate_size,
                layer_norm_eps=layer_norm_eps,
            ),
            pooling,
            "relu",
        )


@BACKBONES.register("electra")
class ELECTRA(Encoder):
    """The encoder of Clark et al., 2020 (arXiv:2003.10555), discriminator or generator.

    Published weights have no pooler. It is replaced by the linear layer and GELU of Google's and Hugging
    Face's ELECTRA classifiers.

    Args:
        type_vocab_size: number of segments.
        embedding_size: width of the embedding tables, projected to `hidden_size` by a linear layer if
            different; None for `hidden_size`.
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
        pooling: Pooling = "cls",
        embedding_size: int | None = None,
    ) -> None:
        segments = Table("segment", "segment_ids", "type_vocab_size", type_vocab_size)
        super().__init__(
            Shape(
                hidden_size,
                num_hidden_layers,
                num_attention_heads,
                vocab_size,
                max_position_embeddings,
                hidden_act,
                hidden_dropout_prob,
                attention_probs_dropout_prob,
                initializer_range,
                intermediate_size=intermediate_size,
                layer_norm_eps=layer_norm_eps,
                other_tables=(segments,),
                embedding_size=embedding_size,
            ),
            pooling,
            "gelu",
        )


@BACKBONES.register("ernie")
class ERNIE(Encoder):
    """The encoder of ERNIE 1.0 and 2.0 (Sun et al., 2019, arXiv:1904.09223 and arXiv:1907.12412).

    Args:
        sent_type_vocab_size: number of sentence types (segments).
        task_type_vocab_size: number of task ids.
        use_task_id: use task embeddings; ERNIE 1.0 has none. Without them, the backbone does not read
            `task_ids`.
    """

    aliases: ClassVar[Mapping[str, str]] = {
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
        pooling: Pooling = "cls",
        use_task_id: bool = True,
    ) -> None:
        segments = Table("segment", "segment_ids", "sent_type_vocab_size", sent_type_vocab_size)
        tasks = Table("task", "task_ids", "task_type_vocab_size", task_type_vocab_size)
        super().__init__(
            Shape(
                hidden_size,
                num_hidden_layers,
                num_attention_heads,
                vocab_size,
                max_position_embeddings,
                hidden_act,
                hidden_dropout_prob,
                attention_probs_dropout_prob,
                initializer_range,
                intermediate_size=intermediate_size,
                layer_norm_eps=layer_norm_eps,
                other_tables=(segments, tasks) if use_task_id else (segments,),
            ),
            pooling,
        )


@BACKBONES.register("roberta")
class RoBERTa(Encoder):
    """The encoder of Liu et al., 2019 (arXiv:1907.11692), and of XLM-R.

    Every token belongs to segment 0. Position 0 has row `pad_token_id + 1` of the position table; the rows
    before it are reserved for padding.

    Args:
        max_position_embeddings: rows of the position table; the maximum sequence length is
            `pad_token_id + 1` less.
        type_vocab_size: rows of the segment table; only the first is used.
        pad_token_id: id of the padding token in the vocabulary, and its row in the position table.
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
        pooling: Pooling = "cls",
        pad_token_id: int = 1,
    ) -> None:
        segment = Table("segment", None, "type_vocab_size", type_vocab_size)
        super().__init__(
            Shape(
                hidden_size,
                num_hidden_layers,
                num_attention_heads,
                vocab_size,
                max_position_embeddings,
                hidden_act,
                hidden_dropout_prob,
                attention_probs_dropout_prob,
                initializer_range,
                intermediate_size=intermediate_size,
                layer_norm_eps=layer_norm_eps,
                other_tables=(segment,),
                pad_token_id=pad_token_id,
            ),
            pooling,
        )
