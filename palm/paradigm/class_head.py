"""Classification: the base class of its heads, with their common settings and loss, and `cls`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.component import (
    PositiveFloat,
    PositiveInt,
    Probability,
    count_problems,
    dropout_problems,
    raise_any,
)
from palm.core.errors import WiringError, about
from palm.core.layers import init_weights
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, Head

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


@dataclass(eq=False, repr=False)
class ClassHead(Head):
    """Dropout and one linear layer that classifies texts or parts of them.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: standard deviation of the normal distribution that initializes the linear layer's
            weights.

    Attributes:
        feature: the backbone's output that the head reads.
        has_bias: True if the linear layer has a bias.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    n_classes: Annotated[int, partial(count_problems, 2)]
    hidden_size: PositiveInt
    dropout_prob: Probability = 0.1
    initializer_range: PositiveFloat = 0.02

    feature: ClassVar[str] = "sentence_embedding"
    has_bias: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__()
        self.inputs_attr = {self.feature: TensorSpec(("batch", self.hidden_size), torch.float)}
        self.targets_attr = {"label_ids": TensorSpec(("batch",), torch.long)}
        per_class = TensorSpec(("batch", self.n_classes), torch.float)
        self.outputs_attr = {"logits": per_class, "probs": per_class}
        self.dropout = nn.Dropout(self.dropout_prob)
        self.out = nn.Linear(self.hidden_size, self.num_scores, bias=self.has_bias)
        init_weights(self.out, self.initializer_range)
        self.class_loss = self.new_loss()  # allocates after `out`, which a wrong n_classes makes fail

    def new_loss(self) -> ClassLoss:
        """Create the cross-entropy."""
        return ClassLoss(self.n_classes)

    @property
    def num_scores(self) -> int:
        """The width of the linear layer's output."""
        return self.n_classes

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [batch, n_classes]."""
        logits = self.out(self.dropout(features[self.feature]))
        return {"logits": logits, "probs": self.probabilities(logits)}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Compute the probabilities from the logits, both [batch, n_classes]."""
        return logits.float().softmax(-1)

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy over the rows that have a label.

        Raises:
            WiringError: if a label is out of range (on a CPU only; a GPU does not report which one).
        """
        labels = targets["label_ids"]
        try:
            loss: Tensor = self.class_loss(outputs["logits"], labels)
        except IndexError:
            raise label_error("label_ids", labels, outputs["logits"].shape[-1]) from None
        return loss

    @torch.no_grad()
    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Count labels for balanced weights, and initialize the biases to log frequencies unless loaded."""
        if self.out.out_features != self.n_classes:
            return
        counts = self.class_loss.count(labels)
        if not self.out.bias.any():
            weights = 1.0 if self.class_loss.weights is None else self.class_loss.weights.cpu() + SMALLEST
            shares = ((counts + 1) * weights).log()
            self.out.bias.copy_(shares - shares.mean())

    def num_terms(self, batch: Tensors) -> int:
        """Count the rows that have a label."""
        missing = int((batch["label_ids"] == NO_LABEL).sum()) if "label_ids" in batch else 0
        return super().num_terms(batch) - missing

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row the most likely `label` (the lowest on a tie), and `logits` and `probs` of all labels."""
        labels = outputs["logits"].argmax(-1).tolist()
        scores = zip(labels, outputs["logits"].tolist(), outputs["probs"].tolist(), strict=True)
        return [{"label": label, "logits": logits, "probs": probs} for label, logits, probs in scores]


@dataclass(eq=False, repr=False, kw_only=True)
class WeightedHead(ClassHead):
    """A classification head with settings of its loss.

    Args:
        class_weights: weight of each label in the loss; or balanced: rows / (labels * rows of the label).
        label_smoothing: fraction of the true label's probability that is distributed over all labels.
    """

    class_weights: str | list[float] | None = None
    label_smoothing: float = 0.0

    def new_loss(self) -> ClassLoss:
        return ClassLoss(self.n_classes, self.class_weights, self.label_smoothing)


@HEADS.register("cls")
class Classify(WeightedHead):
    """Dropout and one linear layer on the sentence embedding (Devlin et al., 2018, section 4.1).

    The settings of every classification head are described in `WeightedHead`.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    card = ("text-classification", "text classification")
    metrics = ("accuracy", "macro_f1")
