"""ELECTRA: embeddings of a width of their own, another pooler."""

from __future__ import annotations

from palm.backbone.architecture import Architecture
from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.shape import Table


@BACKBONES.register("electra")
class ELECTRA(Encoder):
    """The encoder of Clark et al., 2020 (arXiv:2003.10555), discriminator or generator.

    Published weights have no pooler. Ours is the layer that Google's and Hugging Face's ELECTRA
    classifiers put in its place, linear and GELU.

    Args:
        type_vocab_size: number of segments.
        embedding_size: width of the embedding tables; where it is not `hidden_size`, a linear layer
            lies between. `hidden_size` where None.
    """

    @staticmethod
    def architecture(type_vocab_size: int = 2, *, embedding_size: int | None = None) -> Architecture:
        """Segments, the tables' width, another pooler."""
        segments = Table("segment", "segment_ids", "type_vocab_size", type_vocab_size)
        return Architecture(tables=(segments,), embedding_size=embedding_size, pooler_act="gelu")
