"""Count regression on the sentence embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.tensor_specs import Tensors
from palm.paradigm.base import HEADS
from palm.paradigm.regression import Regression


@HEADS.register("count")
class Count(Regression):
    """Dropout and one linear layer that predicts the logarithm of a mean; labels are non-negative integers.

    The loss is the negative log-likelihood of the Poisson distribution with that mean, without the constant
    term log(label!).

    Source: Cameron and Trivedi, 1998, "Regression analysis of count data", section 2.2.
    """

    card = ("text-classification", "count regression")
    outputs = ("values", "log_values")
    metrics = ("poisson_deviance", "spearman", "mse")
    reader_settings: ClassVar[Mapping[str, Any]] = {"label_type": "count"}

    def forward(self, features: Tensors) -> Tensors:
        """`values` [batch], the means, and `log_values` [batch], their logarithms."""
        logarithms = super().forward(features)["values"]
        return {"values": logarithms.exp(), "log_values": logarithms}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean of `value - label * log(value)`."""
        return F.poisson_nll_loss(outputs["log_values"], targets["label_values"])

    @torch.no_grad()
    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Initialize the bias to the mean of the labels, unless it was loaded."""
        if not self.out.bias.any() and labels.any():
            self.out.bias.fill_(float(labels.mean()))
            self.out.bias.log_()
