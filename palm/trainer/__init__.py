"""The front door of components: `Trainer` and `MultiHeadTrainer`, under the names of PaddlePALM 2.x."""

from palm.trainer.multi_head import MultiHeadTrainer
from palm.trainer.trainer import Trainer

__all__ = ["MultiHeadTrainer", "Trainer"]
