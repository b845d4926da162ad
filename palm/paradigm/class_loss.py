"""Cross-entropy with class weights and label smoothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.component import dropout_problems, raise_any
from palm.core.errors import WiringError, about
from palm.core.saved import NO_LABEL

BALANCED = "balanced"

SMALLEST = torch.finfo(torch.float32).eps


def label_error(name: str, labels: Tensor, count: int) -> WiringError:
    """Build the error about labels of a batch that are out of range.

    Args:
        name: name of the target.
        labels: int64, of any shape; negative ones are ignored.
        count: number of classes.
    """
    invalid = sorted({label for label in labels.flatten().tolist() if label >= count})
    return WiringError(f"{name}: {invalid} are outside 0..{count - 1}; n_classes is {count}")


class ClassLoss(nn.Module):
    """Mean cross-entropy over the rows that have a label.

    Args:
        n_classes: number of labels.
        class_weights: weight of each label in the loss; `balanced` for rows / (labels * rows of the label).
        label_smoothing: fraction of the true label's probability that is distributed over all labels.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    weights: Tensor | None

    def __init__(
        self,
        n_classes: int,
        class_weights: str | list[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        problems = dropout_problems(label_smoothing=label_smoothing)
        given = class_weights if isinstance(class_weights, list) else None
        is_list = given is not None and len(given) == n_classes and min(given) >= 0 and max(given) > 0
        if class_weights not in (None, BALANCED) and not is_list:
            expected = f"{BALANCED} or {n_classes} numbers of 0 or more, at least one above 0"
            problems.append(about("class_weights", f": {class_weights!r} should be {expected}"))
        raise_any(problems)
        self.is_balanced = class_weights == BALANCED
        self.is_plain = class_weights is None and not label_smoothing
        self.label_smoothing = label_smoothing
        self.counts = torch.zeros(n_classes)
        weights = None if class_weights is None else torch.ones(n_classes)
        self.register_buffer("weights", weights if given is None else torch.tensor(given), persistent=False)

    def count(self, labels: npt.NDArray[Any]) -> Tensor:
        """Count the labels of training rows or of their words, [n_classes], for balanced weights too."""
        number = len(self.counts)
        counts = np.bincount(labels[labels >= 0], minlength=number)[:number]
        self.counts += torch.from_numpy(counts)
        if self.is_balanced and self.weights is not None:
            self.weights.copy_(self.counts.sum() / (number * self.counts.clamp(min=1)))
        return self.counts

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss, a scalar.

        Args:
            logits: [rows, n_classes].
            labels: int64 [rows].
        """
        if self.is_plain:
            return F.cross_entropy(logits, labels)
        losses = F.cross_entropy(
            logits, labels, self.weights, reduction="none", label_smoothing=self.label_smoothing
        )
        return losses.sum() / (labels != NO_LABEL).sum().clamp(min=1)
