"""Classification: one label per text, from its sentence embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor, nn

from palm.core.checks import count_problems, raise_any
from palm.core.errors import WiringError
from palm.core.numerics.layers import init_weights
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import ALIASES_2X, HEADS, Head, head_problems
from palm.paradigm.class_loss import ClassLoss


@HEADS.register("cls")
class Classify(Head):
    """Dropout and one linear layer on the sentence embedding (Devlin et al., 2018, section 4.1).

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's sentence embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.
        class_weights: factor of the loss of each label; or balanced: rows / (labels * rows of the label)
        label_smoothing: the part of the true label's probability that is divided among all labels.
        focal_gamma: exponent of (1 - probability of the true label), by which the loss is multiplied.
        soft_labels: whether rows have a probability of every label (label_type: soft), not one label.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    aliases: ClassVar[dict[str, str]] = {"num_classes": "n_classes"} | ALIASES_2X
    feature: ClassVar[str] = "sentence_embedding"
    metrics: Sequence[str] = ("accuracy", "macro_f1")

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
        soft_labels: bool = False,
    ) -> None:
        super().__init__()
        problems = count_problems(least=2, n_classes=n_classes)
        raise_any(problems + head_problems(hidden_size, initializer_range, dropout_prob))
        self.inputs_attr = {self.feature: TensorSpec(("batch", hidden_size), torch.float)}
        per_class = TensorSpec(("batch", n_classes), torch.float)
        self.target = "label_probs" if soft_labels else "label_ids"
        self.targets_attr = {self.target: per_class if soft_labels else TensorSpec(("batch",), torch.long)}
        self.outputs_attr = {"logits": per_class, "probs": per_class}
        self.dropout = nn.Dropout(dropout_prob)
        self.out = nn.Linear(hidden_size, n_classes)
        init_weights(self, initializer_range)
        self.class_loss = ClassLoss(n_classes, class_weights, label_smoothing, focal_gamma)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [batch, n_classes]."""
        logits = self.out(self.dropout(features[self.feature]))
        return {"logits": logits, "probs": logits.float().softmax(-1)}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy of the rows that have a label.

        Raises:
            WiringError: if a label is none of the classes (on a CPU; a GPU cannot say which).
        """
        logits = outputs["logits"]
        labels = targets[self.target]
        try:
            loss: Tensor = self.class_loss(logits, labels)
        except IndexError:
            strange = sorted(set(labels.tolist()) - {NO_LABEL, *range(logits.shape[1])})
            raise WiringError(
                f"label_ids: {strange} are outside 0..{logits.shape[1] - 1}; n_classes is {logits.shape[1]}"
            ) from None
        return loss

    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        self.class_loss.count(labels)

    def num_terms(self, batch: Tensors) -> int:
        """The rows that have a label."""
        missing = int((batch["label_ids"] == NO_LABEL).sum()) if "label_ids" in batch else 0
        return super().num_terms(batch) - missing

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `label`, the likeliest one (the lowest on a tie), `logits` and `probs` of all labels."""
        labels = outputs["logits"].argmax(-1).tolist()
        scores = zip(labels, outputs["logits"].tolist(), outputs["probs"].tolist(), strict=True)
        return [{"label": label, "logits": logits, "probs": probs} for label, logits, probs in scores]
