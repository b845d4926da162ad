"""The heads under their name of PaddlePALM 2.x; their home is `palm.paradigm`."""

from palm.paradigm import MRC, Classify, Head, MaskLM, Match, Regression, SequenceLabel

__all__ = ["MRC", "Classify", "Head", "MaskLM", "Match", "Regression", "SequenceLabel"]
