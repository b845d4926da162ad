"""Matching: whether two texts belong together, from their joint embedding."""

from __future__ import annotations

from typing import ClassVar

from palm.paradigm.base import PARADIGMS
from palm.paradigm.cls import Classify


@PARADIGMS.register("match")
class Match(Classify):
    """`Classify` on the embedding of a pair of texts.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's sentence pair embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.
    """

    feature: ClassVar[str] = "sentence_pair_embedding"

    def __init__(
        self,
        n_classes: int = 2,
        hidden_size: int = 768,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
    ) -> None:
        super().__init__(n_classes, hidden_size, dropout_prob, initializer_range)
