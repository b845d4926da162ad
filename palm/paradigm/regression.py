"""Regression on the sentence embedding: one real number per text or pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import HEADS
from palm.paradigm.score_head import ScoreHead


@HEADS.register("regression")
class Regression(ScoreHead):
    """Dropout and one linear layer that predicts a number; the loss is the mean squared error.

    Source: Devlin et al., 2018, section 4.1, as applied to STS-B.
    """

    card = ("text-classification", "text regression")
    outputs: ClassVar[tuple[str, ...]] = ("values",)
    metrics: Sequence[str] = ("pearson", "spearman", "mse")
    reader_settings: ClassVar[Mapping[str, Any]] = {"label_type": "real"}

    def __init__(self, hidden_size: int, dropout_prob: float = 0.1, initializer_range: float = 0.02) -> None:
        super().__init__(hidden_size, dropout_prob, initializer_range)
        self.targets_attr = {"label_values": TensorSpec(("batch",), torch.float)}
        self.outputs_attr = dict.fromkeys(self.outputs, TensorSpec(("batch",), torch.float))

    def forward(self, features: Tensors) -> Tensors:
        """`values` [batch], in the units of the labels."""
        return {"values": self.out(self.dropout(features[self.feature])).float().squeeze(-1)}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(outputs["values"], targets["label_values"])

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row the predicted `value`."""
        return [{"value": value} for value in outputs["values"].tolist()]
