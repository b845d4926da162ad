"""Ordinal classification on the sentence embedding: ordered labels, such as grades or stars."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from palm.core.saved import Tensors
from palm.paradigm.base import HEADS
from palm.paradigm.class_head import ClassHead


@HEADS.register("ordinal")
class Ordinal(ClassHead):
    """Dropout and one linear layer that predicts a score, and thresholds that divide it into labels.

    The probability of a label above k is sigmoid(score - threshold k), the cumulative link model with
    proportional odds. `logits` are the logarithms of the labels' probabilities.

    Source: McCullagh, 1980, "Regression models for ordinal data", equation 1.2.
    """

    card = ("text-classification", "ordinal text classification")
    metrics = ("qwk", "accuracy")
    has_bias = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Storing the logarithms of the gaps between thresholds keeps these ordered.
        self.lowest = nn.Parameter(torch.zeros(()))
        self.log_gaps = nn.Parameter(torch.zeros(self.n_classes - 2))

    @property
    def num_scores(self) -> int:
        return 1

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [batch, n_classes]."""
        score = self.out(self.dropout(features[self.feature])).float()
        gaps = self.log_gaps.exp()
        above = score - self.lowest - F.pad(gaps.cumsum(0), (1, 0))  # [batch, n_classes - 1]
        # sigmoid(a) - sigmoid(b) = sigmoid(a) * sigmoid(-b) * (1 - exp(b - a)), without cancellation.
        between = F.pad(torch.log(-torch.expm1(-gaps)), (1, 1))
        logits = F.pad(F.logsigmoid(above), (1, 0)) + F.pad(F.logsigmoid(-above), (0, 1)) + between
        return {"logits": logits, "probs": self.probabilities(logits)}

    @torch.no_grad()
    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Initialize the thresholds from label frequencies, unless they were loaded."""
        if self.lowest:
            return
        rows = np.bincount(labels[labels >= 0], minlength=len(self.log_gaps) + 2) + 1.0
        below = rows.cumsum()[:-1] / rows.sum()
        thresholds = torch.from_numpy(np.log(below / (1 - below)))
        self.lowest.copy_(thresholds[0])
        self.log_gaps.copy_(thresholds.diff().log())
