"""PaddlePALM 2.x: trainers with its method names, and its components under their published names."""

from palm.compat import distribute, head
from palm.compat.multi_head import MultiHeadTrainer
from palm.compat.trainer import Trainer

__all__ = ["MultiHeadTrainer", "Trainer", "distribute", "head"]
