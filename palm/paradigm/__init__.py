"""Heads, registered under the names that `paradigm` accepts in a configuration."""

from palm.paradigm.base import HEADS, Head
from palm.paradigm.choices import MultipleChoice, Ranking
from palm.paradigm.class_head import Classify
from palm.paradigm.embedding import Embedding
from palm.paradigm.match import Match
from palm.paradigm.mlm import MaskLM
from palm.paradigm.mrc import MRC
from palm.paradigm.multi_label import MultiLabel
from palm.paradigm.ordinal import Ordinal
from palm.paradigm.regression import Count, Regression
from palm.paradigm.relation import Relation
from palm.paradigm.seq_label import SequenceLabel
from palm.paradigm.span import Span

__all__ = [
    "HEADS",
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
]
