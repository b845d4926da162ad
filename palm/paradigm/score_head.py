"""Base class of heads that predict a number for each text."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from palm.core.component import raise_any
from palm.core.layers import init_weights
from palm.core.tensor_specs import TensorSpec
from palm.paradigm.base import Head, head_problems


class ScoreHead(Head):
    """Dropout and one linear layer that predicts a number; a subclass declares targets and outputs.

    Args:
        hidden_size: width of the backbone's sentence embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: standard deviation of the normal distribution that initializes the weights.

    Attributes:
        feature: the backbone's output that the head reads.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    feature: ClassVar[str] = "sentence_embedding"

    def __init__(self, hidden_size: int, dropout_prob: float = 0.1, initializer_range: float = 0.02) -> None:
        super().__init__()
        raise_any(head_problems(hidden_size, initializer_range, dropout_prob))
        self.inputs_attr = {self.feature: TensorSpec(("batch", hidden_size), torch.float)}
        self.dropout = nn.Dropout(dropout_prob)
        self.out = nn.Linear(hidden_size, 1)
        init_weights(self, initializer_range)
