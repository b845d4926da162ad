"""Base class of classification heads: their common settings, loss and calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from palm.core.component import count_problems, dropout_problems, raise_any
from palm.core.layers import init_weights
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import Head, Judged, head_problems
from palm.paradigm.calibration import best_temperature, lowest_threshold
from palm.paradigm.class_loss import SMALLEST, ClassLoss, label_error


class ClassHead(Head):
    """Dropout and one linear layer that classifies texts or parts of them.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: standard deviation of the normal distribution that initializes the linear layer's
            weights.
        class_weights: weight of each label in the loss; or balanced: rows / (labels * rows of the label).
        label_smoothing: fraction of the true label's probability that is distributed over all labels.
        focal_gamma: exponent of the loss factor (1 - probability of the true label).
        r_drop: weight of the divergence between two passes with different dropout masks; every training row
            then goes through the encoder twice. 0 for one pass.
        calibrate: fit a temperature to the dev data; probabilities are the softmax of logits / temperature.
        abstain_below: required precision: predictions abstain below the lowest probability threshold that
            reaches it on the dev data; without dev data, below this value.
        num_scores: width of the linear layer's output, if not `n_classes`; not a setting.

    Attributes:
        feature: the backbone's output that the head reads.
        calibration_error: name of the metric that a calibrated head adds to its default ones.
        has_bias: True if the linear layer has a bias.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    feature: ClassVar[str] = "sentence_embedding"
    calibration_error: ClassVar[str] = "ece"
    has_bias: ClassVar[bool] = True
    target: str = "label_ids"
    temperature: Tensor
    abstain_threshold: Tensor

    def __init__(
        self,
        n_classes: int,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        class_weights: str | list[float] | None = None,
        label_smoothing: float = 0.0,
        focal_gamma: float = 0.0,
        r_drop: float = 0.0,
        calibrate: bool = False,
        abstain_below: float | None = None,
        num_scores: int | None = None,
    ) -> None:
        super().__init__()
        problems = count_problems(least=2, n_classes=n_classes)
        problems += dropout_problems(abstain_below=0.0 if abstain_below is None else abstain_below)
        raise_any(problems + head_problems(hidden_size, initializer_range, dropout_prob))
        self.n_classes = n_classes
        self.inputs_attr = {self.feature: TensorSpec(("batch", hidden_size), torch.float)}
        self.targets_attr = {"label_ids": TensorSpec(("batch",), torch.long)}
        per_class = TensorSpec(("batch", n_classes), torch.float)
        self.outputs_attr = {"logits": per_class, "probs": per_class}
        self.is_calibrated = calibrate
        self.abstains_below = abstain_below
        if calibrate:
            self.metrics = (*self.metrics, self.calibration_error)
            self.register_buffer("temperature", torch.ones(1))
        if abstain_below is not None:
            self.register_buffer("abstain_threshold", torch.tensor(float(abstain_below)))
        self.class_loss = ClassLoss(n_classes, class_weights, label_smoothing, focal_gamma, r_drop)
        self.copies = 2 if r_drop else 1
        self.dropout = nn.Dropout(dropout_prob)
        self.out = nn.Linear(hidden_size, num_scores or n_classes, bias=self.has_bias)
        init_weights(self.out, initializer_range)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [batch, n_classes]."""
        logits = self.out(self.dropout(features[self.feature]))
        return {"logits": logits, "probs": self.probabilities(logits)}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Compute the probabilities from the logits, both [batch, n_classes]."""
        return self.calibrated(logits).softmax(-1)

    def calibrated(self, logits: Tensor) -> Tensor:
        """Divide the logits by the temperature."""
        return logits.float() / self.temperature.to(logits.device) if self.is_calibrated else logits.float()

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy over the rows that have a label.

        Raises:
            WiringError: if a label is out of range (on a CPU only; a GPU does not report which one).
        """
        labels = targets[self.target]
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
        records = [{"label": label, "logits": logits, "probs": probs} for label, logits, probs in scores]
        if self.abstains_below is None:
            return records
        threshold = float(self.abstain_threshold)
        return [record | {"abstains": max(record["probs"]) < threshold} for record in records]

    def tune(self, pairs: Iterable[Judged]) -> Iterable[Judged]:
        """Fit the temperature and the threshold below which predictions abstain."""
        if not self.is_calibrated and self.abstains_below is None:
            return pairs
        pairs = list(pairs)
        logits = self.logits_of(pairs).numpy()
        labels = self.labels_of(pairs)
        if self.is_calibrated:
            self.temperature.fill_(best_temperature(logits, labels))
        if self.abstains_below is not None:
            confidence = self.probabilities(torch.from_numpy(logits)).amax(-1).numpy()
            right = logits.argmax(-1) == labels
            self.abstain_threshold.fill_(lowest_threshold(confidence, right, self.abstains_below))
        return self.redecode(pairs)

    def logits_of(self, pairs: Sequence[Judged]) -> Tensor:
        """Return the logits of the records, [examples, n_classes]."""
        return torch.tensor([record["logits"] for record, _ in pairs])

    def labels_of(self, pairs: Sequence[Judged]) -> npt.NDArray[np.int64]:
        """Return the true labels, [examples]."""
        return np.asarray([truth["label"] for _, truth in pairs])

    def redecode(self, pairs: Sequence[Judged]) -> list[Judged]:
        """Decode the logits of the records again, with the fitted values."""
        logits = self.logits_of(pairs)
        decoded = self.decode({"logits": logits, "probs": self.probabilities(logits)})
        return [(record | new, truth) for new, (record, truth) in zip(decoded, pairs, strict=True)]

    def library_parameters(self) -> Tensors:
        """Return the parameters, with the temperature folded into the linear layer."""
        parameters = super().library_parameters()
        if self.is_calibrated:
            parameters["out.weight"] = parameters["out.weight"] / self.temperature[:, None]
            parameters["out.bias"] = parameters["out.bias"] / self.temperature
        return parameters
