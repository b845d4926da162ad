"""Encoders under the names and with the arguments of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palm import backbone
from palm.backbone import ELECTRA, Backbone, DistilBERT, RoBERTa, Transformers
from palm.compat.backbone import base_backbone
from palm.compat.conventions import Phased

__all__ = [
    "BERT",
    "ELECTRA",
    "ERNIE",
    "Backbone",
    "DistilBERT",
    "RoBERTa",
    "Transformers",
    "base_backbone",
]


class BERT(Phased, backbone.BERT):
    """BERT with the arguments of 2.x; `is_pairwise` has no effect, since an encoder takes any batch."""

    stands_for = backbone.BERT

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
        is_pairwise: bool = False,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        del is_pairwise
        super().__init__(
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            vocab_size,
            max_position_embeddings,
            type_vocab_size=type_vocab_size,
            hidden_act=hidden_act,
            hidden_dropout_prob=hidden_dropout_prob,
            attention_probs_dropout_prob=attention_probs_dropout_prob,
            initializer_range=initializer_range,
            phase=phase,
            **settings,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], phase: str = "train") -> BERT:
        """Build an encoder from the content of `bert_config.json`; other keys are ignored.

        Raises:
            ConfigError: if settings are missing or invalid; lists all of them.
        """
        return cls(**backbone.BERT.settings_in(config), phase=phase)


class ERNIE(Phased, backbone.ERNIE):
    """ERNIE with the arguments of 2.x; `is_pairwise` has no effect, since an encoder takes any batch."""

    stands_for = backbone.ERNIE

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
        is_pairwise: bool = False,
        use_task_emb: bool | str = True,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        del is_pairwise
        if isinstance(use_task_emb, str):  # 2.0.2 has `phase` in this place
            phase = use_task_emb
            use_task_emb = True
        super().__init__(
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            vocab_size,
            max_position_embeddings,
            sent_type_vocab_size=sent_type_vocab_size,
            task_type_vocab_size=task_type_vocab_size,
            hidden_act=hidden_act,
            hidden_dropout_prob=hidden_dropout_prob,
            attention_probs_dropout_prob=attention_probs_dropout_prob,
            initializer_range=initializer_range,
            phase=phase,
            **{"use_task_id": use_task_emb, **settings},
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], phase: str = "train") -> ERNIE:
        """Build an encoder from the content of `ernie_config.json`; other keys are ignored.

        Raises:
            ConfigError: if settings are missing or invalid; lists all of them.
        """
        return cls(**backbone.ERNIE.settings_in(config), phase=phase)
