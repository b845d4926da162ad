"""Heads by name, as `paradigm` takes them in a configuration."""

from palm.paradigm.base import HEADS, Head
from palm.paradigm.cls import Classify
from palm.paradigm.match import Match
from palm.paradigm.mlm import MaskLM
from palm.paradigm.mrc import MRC
from palm.paradigm.multi_label import MultiLabel
from palm.paradigm.regression import Regression
from palm.paradigm.relation import Relation
from palm.paradigm.seq_label import SequenceLabel
from palm.paradigm.span import Span

__all__ = [
    "HEADS",
    "MRC",
    "Classify",
    "Head",
    "MaskLM",
    "Match",
    "MultiLabel",
    "Regression",
    "Relation",
    "SequenceLabel",
    "Span",
]
