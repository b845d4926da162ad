"""The heads of `palm.paradigm` under the package name of PaddlePALM 2.x."""

from palm import paradigm
from palm.paradigm import *  # noqa: F403

# isort: split
from palm.compat.head import base_head
from palm.compat.head.seq_label import SequenceLabel

__all__ = ["SequenceLabel", "base_head"]
__all__ += paradigm.__all__
