"""Matching: whether two texts belong together, from their joint embedding."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.checks import choice_problems, positive_problems, raise_any
from palm.core.errors import ConfigError
from palm.core.numerics.layers import init_weights
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import HEADS
from palm.paradigm.cls import Classify

OF_LABELS = "class_weights, label_smoothing, focal_gamma, r_drop, calibrate and abstain_below"


@HEADS.register("match")
class Match(Classify):
    """`Classify` on the embedding of a pair of texts; or, pairwise, one score that ranks pairs.

    Pairwise training compares two pairs with the same first text: the score of the one that belongs
    together should be above that of the other by a margin. A score is the sigmoid of a linear layer.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`. Not used pairwise.
        hidden_size: width of the backbone's sentence pair embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.
        learning_strategy: 'pointwise' or 'pairwise'.
        margin: by how much the right pair's score should be above the wrong one's.
        class_weights: factor of the loss of each label; or balanced: rows / (labels * rows of the label).
        label_smoothing: the part of the true label's probability that is divided among all labels.
        focal_gamma: exponent of (1 - probability of the true label), by which the loss is multiplied.
        r_drop: factor of the divergence between two passes with dropout of their own; every training row then
            goes through the encoder twice. 0 for one pass.
        calibrate: fit a temperature to the dev data, by which logits are divided for their probabilities.
        abstain_below: the precision that is wanted: a prediction abstains where its probability is below the
            lowest one from which on so many are right on the dev data; without dev data, below this value.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: PaddlePALM 2.0.2, `Match`.
    """

    feature: ClassVar[str] = "sentence_pair_embedding"

    def __init__(
        self,
        n_classes: int = 2,
        hidden_size: int = 768,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        learning_strategy: str = "pointwise",
        margin: float = 0.5,
        *,
        class_weights: str | list[float] | None = None,
        label_smoothing: float = 0.0,
        focal_gamma: float = 0.0,
        r_drop: float = 0.0,
        calibrate: bool = False,
        abstain_below: float | None = None,
    ) -> None:
        super().__init__(
            n_classes,
            hidden_size,
            dropout_prob,
            initializer_range,
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            focal_gamma=focal_gamma,
            r_drop=r_drop,
            calibrate=calibrate,
            abstain_below=abstain_below,
        )
        problems = choice_problems(("pointwise", "pairwise"), learning_strategy=learning_strategy)
        raise_any(positive_problems(margin=margin) + problems)
        self.is_pairwise = learning_strategy == "pairwise"
        self.margin = margin
        if self.is_pairwise:
            if not self.class_loss.is_plain or calibrate or abstain_below is not None:
                raise ConfigError(f"learning_strategy: pairwise has no labels; leave out {OF_LABELS}")
            self.metrics = ("pair_accuracy",)
            self.targets_attr = {"is_negative": TensorSpec(("batch",), torch.bool)}
            self.outputs_attr = {"probs": TensorSpec(("batch", 1), torch.float)}
            self.out = nn.Linear(hidden_size, 1)
            init_weights(self.out, initializer_range)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [batch, n_classes]; pairwise `probs` [batch, 1], the score."""
        if not self.is_pairwise:
            return super().forward(features)
        return {"probs": self.out(self.dropout(features[self.feature])).float().sigmoid()}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy; pairwise mean(max(0, margin - right + wrong)).

        Pairwise, `is_negative` marks the rows of wrong pairs, in the order of the right ones.
        """
        if not self.is_pairwise:
            return super().loss(outputs, targets)
        scores = outputs["probs"][:, 0]
        wrong = targets["is_negative"]
        # Half of the rows are wrong pairs; by order, because picking by a mask would wait for a GPU.
        right, others = scores[wrong.byte().argsort(stable=True)].chunk(2)
        return F.relu(self.margin - right + others).mean()

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `label`, `logits` and `probs`; pairwise `probs` alone, a number."""
        if not self.is_pairwise:
            return super().decode(outputs)
        return [{"probs": score} for score in outputs["probs"][:, 0].tolist()]
