"""The Python interface: `Trainer` and `MultiHeadTrainer`, with the names of PaddlePALM 2.x."""

from palm.trainer.multi_head import MultiHeadTrainer
from palm.trainer.trainer import Trainer

__all__ = ["MultiHeadTrainer", "Trainer"]
