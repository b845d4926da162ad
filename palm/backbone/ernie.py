"""ERNIE: a fourth embedding, of the task."""

from __future__ import annotations

from typing import ClassVar

from palm.backbone.architecture import Architecture
from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Table


@BACKBONES.register("ernie")
class ERNIE(Encoder):
    """The encoder of ERNIE 1.0 and 2.0 (Sun et al., 2019, arXiv:1904.09223 and arXiv:1907.12412).

    Args:
        sent_type_vocab_size: number of sentence types (segments).
        task_type_vocab_size: number of tasks that `task_ids` can name.
        use_task_id: whether there are task embeddings; ERNIE 1.0 has none. Without them the
            backbone does not take `task_ids`.
    """

    aliases: ClassVar[dict[str, str]] = {
        "type_vocab_size": "sent_type_vocab_size",
        "use_task_emb": "use_task_id",
    }
    order_2x = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "sent_type_vocab_size",
        "task_type_vocab_size",
        "hidden_act",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "initializer_range",
        "is_pairwise",
        "use_task_id",
        "phase",
    )

    @staticmethod
    def architecture(
        sent_type_vocab_size: int = 2, task_type_vocab_size: int = 3, *, use_task_id: bool = True
    ) -> Architecture:
        """Segments and tasks."""
        segments = Table("segment", "segment_ids", "sent_type_vocab_size", sent_type_vocab_size)
        tasks = Table("task", "task_ids", "task_type_vocab_size", task_type_vocab_size)
        return Architecture(tables=(segments, tasks) if use_task_id else (segments,))
