"""Output layers by name: `cls`, `match`, `mrc`, `mlm`, `seq_label` and `regression`."""

from palm.paradigm.base import PARADIGMS, Paradigm
from palm.paradigm.cls import Classify
from palm.paradigm.match import Match
from palm.paradigm.mlm import MaskLM
from palm.paradigm.mrc import MRC
from palm.paradigm.regression import Regression
from palm.paradigm.seq_label import SequenceLabel

__all__ = ["MRC", "PARADIGMS", "Classify", "MaskLM", "Match", "Paradigm", "Regression", "SequenceLabel"]
