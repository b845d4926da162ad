"""Heads that predict a number for each text: regression and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.component import PositiveFloat, PositiveInt, Probability
from palm.core.layers import init_weights
from palm.core.saved import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Head


@dataclass(eq=False, repr=False)
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

    hidden_size: PositiveInt
    dropout_prob: Probability = 0.1
    initializer_range: PositiveFloat = 0.02

    feature: ClassVar[str] = "sentence_embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__()
        self.inputs_attr = {self.feature: TensorSpec(("batch", self.hidden_size), torch.float)}
        self.dropout = nn.Dropout(self.dropout_prob)
        self.out = nn.Linear(self.hidden_size, 1)
        init_weights(self, self.initializer_range)


@HEADS.register("regression")
class Regression(ScoreHead):
    """Dropout and one linear layer that predicts a number.

    The layer computes standardized labels: `location` and `scale`, the mean and the standard deviation of the
    training labels, are saved with the head. The loss of a row is half the squared standardized error, the
    negative log-likelihood of a normal distribution but for a constant.

    Source: Devlin et al., 2018, section 4.1, as applied to STS-B.
    """

    card = ("text-classification", "text regression")
    outputs: ClassVar[tuple[str, ...]] = ("values",)
    metrics: Sequence[str] = ("pearson", "spearman", "mse")
    reader_settings: ClassVar[Mapping[str, Any]] = {"label_type": "real"}
    location: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets_attr = {"label_values": TensorSpec(("batch",), torch.float)}
        self.outputs_attr = dict.fromkeys(self.outputs, TensorSpec(("batch",), torch.float))
        self.register_buffer("location", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, features: Tensors) -> Tensors:
        """`values` [batch], in the units of the labels."""
        standardized = self.out(self.dropout(features[self.feature])).float().squeeze(-1)
        return {"values": standardized * self.scale + self.location}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Half the mean squared error, in standard deviations of the training labels."""
        return F.mse_loss(outputs["values"] / self.scale, targets["label_values"] / self.scale) / 2

    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Standardize to these labels, unless the head was loaded."""
        if not self.is_loaded:
            numbers = labels.astype(np.float64)
            self.location.fill_(float(numbers.mean()))
            self.scale.fill_(spread(numbers) or 1.0)

    @property
    def is_loaded(self) -> bool:
        """True if the head is not a new one."""
        return bool(self.location) or float(self.scale) != 1 or bool(self.out.bias.any())

    def library_parameters(self) -> Tensors:
        """Return the parameters of a layer that computes the labels themselves."""
        parameters = super().library_parameters()
        parameters["out.weight"] = parameters["out.weight"] * self.scale
        parameters["out.bias"] = parameters["out.bias"] * self.scale + self.location
        return parameters

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row the predicted `value`."""
        return [{"value": value} for value in outputs["values"].tolist()]


def spread(numbers: npt.NDArray[np.float64]) -> float:
    """Return the standard deviation of some numbers; 0 if they are equal up to rounding."""
    deviation = float(numbers.std())
    return deviation if deviation > 1e-6 * abs(float(numbers.mean())) else 0.0


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

    def __post_init__(self) -> None:
        super().__post_init__()
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
