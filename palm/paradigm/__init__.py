"""Output layers by name: `cls`, `match`, `mrc` and `mlm`."""

from palm.paradigm.base import PARADIGMS, Paradigm
from palm.paradigm.cls import Classify
from palm.paradigm.match import Match
from palm.paradigm.mlm import MaskLM
from palm.paradigm.mrc import MRC

__all__ = ["MRC", "PARADIGMS", "Classify", "MaskLM", "Match", "Paradigm"]
