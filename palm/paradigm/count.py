"""Count regression on the sentence embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.tensor_specs import Tensors
from palm.paradigm.base import HEADS
from palm.paradigm.regression import Regression, spread


@HEADS.register("count")
class Count(Regression):
    """Dropout and one linear layer that predicts the logarithm of a mean; labels are non-negative integers.

    The logarithms are standardized: those of a log-normal distribution with the mean and the variance of the
    training labels would have the mean 0 and the deviation 1. The loss of a row is half its Poisson deviance,
    divided by the dispersion of the training labels (variance / mean): a quasi-likelihood.

    Source: Cameron and Trivedi, 1998, "Regression analysis of count data", sections 2.2 and 3.2.
    """

    card = ("text-classification", "count regression")
    outputs = ("values", "log_values")
    metrics = ("poisson_deviance", "spearman", "mse")
    reader_settings: ClassVar[Mapping[str, Any]] = {"label_type": "count"}
    dispersion: Tensor

    def __init__(self, hidden_size: int, dropout_prob: float = 0.1, initializer_range: float = 0.02) -> None:
        super().__init__(hidden_size, dropout_prob, initializer_range)
        self.register_buffer("dispersion", torch.ones(()))

    def forward(self, features: Tensors) -> Tensors:
        """`values` [batch], the means, and `log_values` [batch], their logarithms."""
        logarithms = super().forward(features)["values"]
        return {"values": logarithms.exp(), "log_values": logarithms}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean of `(value - label - label * log(value / label)) / dispersion`."""
        labels = targets["label_values"]
        highest = (torch.xlogy(labels, labels) - labels).mean()  # the likelihood of `value` = `label`
        return (F.poisson_nll_loss(outputs["log_values"], labels) + highest) / self.dispersion

    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Standardize to these labels, unless the head was loaded."""
        if self.is_loaded or not labels.any():
            return
        numbers = labels.astype(np.float64)
        mean = float(numbers.mean())
        deviation = spread(numbers)
        self.location.fill_(math.log(mean))
        if deviation:
            self.scale.fill_(math.sqrt(math.log1p((deviation / mean) ** 2)))
            self.dispersion.fill_(deviation**2 / mean)
