"""RoBERTa: one segment, and positions that begin behind the padding's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from palm.backbone.architecture import Architecture, LearnedPositions
from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Table


@BACKBONES.register("roberta")
class RoBERTa(Encoder):
    """The encoder of Liu et al., 2019 (arXiv:1907.11692), and of XLM-R.

    Every token belongs to segment 0. Token number 0 has row `pad_token_id + 1` of the position
    table: the rows before belong to padding.

    Args:
        max_position_embeddings: rows of the position table; the longest sequence has
            `pad_token_id + 1` tokens less.
        type_vocab_size: rows of the segment table, of which the first is used.
        pad_token_id: the padding's id in the vocabulary, and the padding's row among the positions.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-5}

    @staticmethod
    def architecture(type_vocab_size: int = 1, *, pad_token_id: int = 1) -> Architecture:
        """One segment for all tokens, positions behind the padding's."""
        segment = Table("segment", None, "type_vocab_size", type_vocab_size)
        return Architecture(tables=(segment,), positions=LearnedPositions(pad_token_id))
