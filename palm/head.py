"""The output layers under their name of PaddlePALM 2.x; their home is `palm.paradigm`."""

from palm.paradigm import MRC, Classify, MaskLM, Match, Regression, SequenceLabel
from palm.paradigm import Paradigm as Head

__all__ = ["MRC", "Classify", "Head", "MaskLM", "Match", "Regression", "SequenceLabel"]
