"""Multi-label classification: any number of labels per text, from its sentence embedding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.checks import choice_problems, raise_any
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, Judged
from palm.paradigm.calibration import best_temperature, best_thresholds
from palm.paradigm.cls import Classify

GAMMA = 4.0
"""The exponent by which the asymmetric loss lowers the weight of labels that a text has not."""

MARGIN = 0.05
"""The probability up to which such a label costs nothing."""


@HEADS.register("multi_label")
class MultiLabel(Classify):
    """Dropout and one linear layer on the sentence embedding, a sigmoid for each label.

    A label is given where its probability reaches the label's threshold: 0.5, or with dev data the one with
    the highest F1 there; thresholds are saved with the model.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's sentence embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.
        loss: of a label: bce, the binary cross-entropy; or asymmetric, in which the many labels that a text
            has not count little, unless they are likely.
        calibrate: fit a temperature of each label to the dev data, by which its logits are divided for their
            probabilities.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: Ridnik et al., 2021, "Asymmetric loss for multi-label classification", with their exponents 0 and
    4 and margin 0.05.
    """

    metrics = ("label_f1", "exact_match", "lrap")
    calibration_error = "label_ece"
    thresholds: Tensor

    def __init__(
        self,
        n_classes: int,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        loss: str = "bce",
        *,
        calibrate: bool = False,
    ) -> None:
        super().__init__(n_classes, hidden_size, dropout_prob, initializer_range, calibrate=calibrate)
        if calibrate:
            self.temperature = torch.ones(n_classes)
        raise_any(choice_problems(("bce", "asymmetric"), loss=loss))
        self.is_asymmetric = loss == "asymmetric"
        self.targets_attr = {"label_set": TensorSpec(("batch", n_classes), torch.float)}
        self.register_buffer("thresholds", torch.full((n_classes,), 0.5))

    def probabilities(self, logits: Tensor) -> Tensor:
        return self.calibrated(logits).sigmoid()

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean loss of all labels of all rows, but for those that are unknown."""
        labels = targets["label_set"]
        logits = outputs["logits"].float()
        known = labels != NO_LABEL
        if self.is_asymmetric:
            likely = (logits.sigmoid() - MARGIN).clamp(min=0)
            losses = torch.where(labels == 1, -F.logsigmoid(logits), -(likely**GAMMA) * torch.log1p(-likely))
        else:
            losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
        return (losses * known).sum() / known.sum()

    @torch.no_grad()
    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Start from the labels' frequencies; from 0, all labels pull the encoder to one vector at first."""
        labels = labels.reshape(-1, self.out.out_features)
        if not self.out.bias.any():
            odds = ((labels == 1).sum(0) + 1) / ((labels == 0).sum(0) + 1)
            self.out.bias.copy_(torch.from_numpy(np.log(odds)))

    def num_terms(self, batch: Tensors) -> int:
        """The known labels of all rows."""
        if "label_set" not in batch:
            return super().num_terms(batch)
        return int((batch["label_set"] != NO_LABEL).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `labels`, those that reach their threshold, `logits` and `probs` of all labels."""
        given = outputs["probs"] >= self.thresholds.to(outputs["probs"].device)
        rows = zip(given, outputs["logits"].tolist(), outputs["probs"].tolist(), strict=True)
        return [
            {"labels": row.nonzero()[:, 0].tolist(), "logits": logits, "probs": probs}
            for row, logits, probs in rows
        ]

    def tune(self, pairs: Iterable[Judged]) -> Iterable[Judged]:
        """Fit the temperatures, if they are wanted, and set the thresholds to those with the highest F1."""
        pairs = list(pairs)
        logits = self.logits_of(pairs).numpy()
        true = np.zeros(logits.shape, dtype=bool)
        for row, (_, truth) in enumerate(pairs):
            true[row, truth["label_set"]] = True
        for label in range(len(self.temperature) if self.is_calibrated else 0):
            both = np.stack([np.zeros(len(pairs)), logits[:, label]], axis=1)
            self.temperature[label] = best_temperature(both, true[:, label].astype(np.int64))
        probs = self.probabilities(torch.from_numpy(logits)).numpy()
        self.thresholds.copy_(torch.from_numpy(best_thresholds(probs, true)))
        return self.decoded_again(pairs)
