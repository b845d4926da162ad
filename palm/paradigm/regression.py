"""Regression: one real number per text or pair of texts, from its sentence embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.checks import raise_any
from palm.core.numerics.layers import init_weights
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import ALIASES_2X, HEADS, Head, head_problems


@HEADS.register("regression")
class Regression(Head):
    """Dropout and one linear layer that gives a number; the loss is the mean squared error.

    Args:
        hidden_size: width of the backbone's sentence embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: Devlin et al., 2018, section 4.1, as its authors treat STS-B.
    """

    aliases: ClassVar[dict[str, str]] = ALIASES_2X
    outputs: ClassVar[tuple[str, ...]] = ("values",)
    metrics: Sequence[str] = ("pearson", "spearman", "mse")
    reader_settings: ClassVar[Mapping[str, Any]] = {"label_type": "real"}

    def __init__(self, hidden_size: int, dropout_prob: float = 0.1, initializer_range: float = 0.02) -> None:
        super().__init__()
        raise_any(head_problems(hidden_size, initializer_range, dropout_prob))
        self.inputs_attr = {"sentence_embedding": TensorSpec(("batch", hidden_size), torch.float)}
        self.targets_attr = {"label_values": TensorSpec(("batch",), torch.float)}
        self.outputs_attr = dict.fromkeys(self.outputs, TensorSpec(("batch",), torch.float))
        self.dropout = nn.Dropout(dropout_prob)
        self.out = nn.Linear(hidden_size, 1)
        init_weights(self, initializer_range)

    def forward(self, features: Tensors) -> Tensors:
        """`values` [batch], in the units of the labels."""
        return {"values": self.out(self.dropout(features["sentence_embedding"])).float().squeeze(-1)}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(outputs["values"], targets["label_values"])

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row its `value`."""
        return [{"value": value} for value in outputs["values"].tolist()]
