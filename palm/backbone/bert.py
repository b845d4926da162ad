"""BERT: word, position and segment embeddings."""

from __future__ import annotations

from palm.backbone.architecture import Architecture
from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Table


@BACKBONES.register("bert")
class BERT(Encoder):
    """The encoder of Devlin et al., 2018 (arXiv:1810.04805).

    Args:
        type_vocab_size: number of segments.
    """

    @staticmethod
    def architecture(type_vocab_size: int = 2) -> Architecture:
        """Segments."""
        return Architecture(tables=(Table("segment", "segment_ids", "type_vocab_size", type_vocab_size),))
