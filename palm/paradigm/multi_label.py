"""Multi-label classification on the sentence embedding: any number of labels per text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.saved import NO_LABEL, Tensors
from palm.paradigm.base import HEADS, Judged
from palm.paradigm.class_head import ClassHead, ClassLoss

Floats = npt.NDArray[np.floating[Any]]

FOLDS = 5
"""Parts of the dev data, each of which is scored with the thresholds of the others."""


@HEADS.register("multi_label")
@dataclass(eq=False, repr=False, kw_only=True)
class MultiLabel(ClassHead):
    """Dropout and one linear layer on the sentence embedding, with a sigmoid for each label.

    A label is predicted if its probability reaches the label's threshold: 0.5, or with dev data the threshold
    with the highest F1. Thresholds are saved with the model.

    Args:
        class_weights: weight of each label in the loss of the texts that have it; or balanced: (texts without
            the label + 1) / (texts with it + 1).

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    card = ("text-classification", "multi-label text classification")
    metrics = ("label_f1", "exact_match", "lrap")
    class_weights: str | list[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets_attr = {"label_set": self.outputs_attr["probs"]}
        self.thresholds: Tensor
        self.register_buffer("thresholds", torch.full((self.n_classes,), 0.5))
        self._copied: tuple[Tensor, int, Tensor] = (
            self.thresholds,
            self.thresholds._version,
            self.thresholds,
        )

    def new_loss(self) -> ClassLoss:
        return ClassLoss(self.n_classes, self.class_weights)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.float().sigmoid()

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean binary cross-entropy over rows with a known label; a row's is the sum over these labels."""
        labels = targets["label_set"]
        logits = outputs["logits"].float()
        known = labels != NO_LABEL
        losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
        if (weights := self.class_loss.weights) is not None:
            losses = losses * torch.where(labels == 1, weights, 1.0)
        return (losses * known).sum() / known.any(-1).sum().clamp(min=1)

    @torch.no_grad()
    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Initialize the biases from label frequencies; with 0, all embeddings move to one point at first."""
        labels = labels.reshape(-1, self.n_classes)
        odds = torch.from_numpy(((labels == 1).sum(0) + 1) / ((labels == 0).sum(0) + 1))
        weights = self.class_loss.weights
        if self.class_loss.is_balanced and weights is not None:
            weights.copy_(1 / odds)
        if not self.out.bias.any():
            self.out.bias.copy_((odds if weights is None else odds * weights.cpu()).log())

    def num_terms(self, batch: Tensors) -> int:
        """Count the rows with a known label."""
        if "label_set" not in batch:
            return super().num_terms(batch)
        return int((batch["label_set"] != NO_LABEL).any(-1).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row the `labels` that reach their threshold, and `logits` and `probs` of all labels."""
        given = outputs["probs"] >= self._thresholds_on_host().to(outputs["probs"].device)
        rows = zip(given, outputs["logits"].tolist(), outputs["probs"].tolist(), strict=True)
        return [
            {"labels": row.nonzero()[:, 0].tolist(), "logits": logits, "probs": probs}
            for row, logits, probs in rows
        ]

    def _thresholds_on_host(self) -> Tensor:
        """Return the thresholds on the host, cached, because a copy per batch would synchronize a GPU."""
        original, version, copy = self._copied
        if original is not self.thresholds or version != self.thresholds._version:
            copy = self.thresholds.cpu()
            self._copied = (self.thresholds, self.thresholds._version, copy)
        return copy

    def tune(self, pairs: Iterable[Judged]) -> Iterable[Judged]:
        """Set each threshold to the highest F1.

        The returned records have the labels of thresholds that were fitted to other texts, so that their
        scores are those of new texts.
        """
        pairs = list(pairs)
        probs = np.array([record["probs"] for record, _ in pairs], dtype=np.float32)
        true = np.zeros(probs.shape, dtype=bool)
        for row, (_, truth) in enumerate(pairs):
            true[row, truth["label_set"]] = True
        self.thresholds.copy_(torch.from_numpy(best_thresholds(probs, true)))
        part = np.arange(len(pairs)) % FOLDS
        given = np.zeros(probs.shape, dtype=bool)
        for fold in range(FOLDS):
            given[part == fold] = probs[part == fold] >= best_thresholds(
                probs[part != fold], true[part != fold]
            )
        return [
            ({**record, "labels": np.flatnonzero(row).tolist()}, truth)
            for row, (record, truth) in zip(given, pairs, strict=True)
        ]


def best_thresholds(probs: Floats, true: npt.NDArray[np.bool_]) -> Floats:
    """Return the threshold with the highest F1 for every label; ties go to the one nearest to 0.5.

    A threshold halfway between the lowest right probability and the next one below would fit no other texts
    where a label has few: on the tags of 80 texts, F1 on other texts was 0.87 in place of 0.89.

    Args:
        probs: [texts, labels].
        true: [texts, labels].
    """
    labels = probs.shape[1]
    logits = np.linspace(-6, 6, 241)
    grid = 1 / (1 + np.exp(-logits))
    # The number of thresholds that each probability reaches gives the counts above each threshold.
    reached = np.searchsorted(grid, probs, side="right") + np.arange(labels) * (len(grid) + 1)
    sizes = labels * (len(grid) + 1)
    given, right = (
        np.bincount(reached.ravel(), weights, sizes).reshape(labels, -1)[:, :0:-1].cumsum(1)[:, ::-1]
        for weights in (None, true.ravel().astype(np.float64))
    )  # [labels, thresholds]
    scores = 2 * right / (given + true.sum(0)[:, None]).clip(1)
    is_best = scores >= scores.max(1, keepdims=True) - 1e-9
    thresholds: Floats = grid[np.where(is_best, np.abs(logits), np.inf).argmin(1)].astype(np.float32)
    return thresholds
