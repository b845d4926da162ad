"""The heads under their names of PaddlePALM 2.x; their home is `palm.paradigm`."""

from palm.head import base_head
from palm.head.seq_label import SequenceLabel
from palm.paradigm import (
    MRC,
    Classify,
    Count,
    Embedding,
    Head,
    MaskLM,
    Match,
    MultiLabel,
    MultipleChoice,
    Ordinal,
    Ranking,
    Regression,
    Relation,
    Span,
)

__all__ = [
    "MRC",
    "Classify",
    "Count",
    "Embedding",
    "Head",
    "MaskLM",
    "Match",
    "MultiLabel",
    "MultipleChoice",
    "Ordinal",
    "Ranking",
    "Regression",
    "Relation",
    "SequenceLabel",
    "Span",
    "base_head",
]
