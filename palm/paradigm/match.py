"""Text matching on the joint embedding of a pair of texts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.component import choice_problems, positive_problems, raise_any
from palm.core.errors import ConfigError, about
from palm.core.saved import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Scored
from palm.paradigm.class_head import WeightedHead


@HEADS.register("match")
@dataclass(eq=False, repr=False)
class Match(WeightedHead):
    """`WeightedHead` on the embedding of a pair of texts; or, pairwise, one score that ranks pairs.

    Pairwise training compares two pairs with the same first text: the score of the matching pair should
    exceed that of the other by a margin. A score is the sigmoid of a linear layer.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`. Ignored if pairwise.
        learning_strategy: 'pointwise' or 'pairwise'.
        margin: minimum difference wanted between the scores of the matching pair and the other one.

    Raises:
        ConfigError: if settings are invalid; lists all of them.

    Source: PaddlePALM 2.0.2, `Match`.
    """

    card = ("text-classification", "matching of two texts")
    example = '[("a text", "another text")]'
    feature = "sentence_pair_embedding"

    n_classes: int = 2
    hidden_size: int = 768
    _: KW_ONLY
    learning_strategy: str = "pointwise"
    margin: float = 0.5

    @property
    def is_pairwise(self) -> bool:
        """True for one score per pair."""
        return self.learning_strategy == "pairwise"

    @property
    def num_scores(self) -> int:
        return 1 if self.is_pairwise else self.n_classes

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = choice_problems(("pointwise", "pairwise"), learning_strategy=self.learning_strategy)
        raise_any(positive_problems(margin=self.margin) + problems)
        self.metrics = ("pair_accuracy",) if self.is_pairwise else ("accuracy", "macro_f1")
        if self.is_pairwise:
            if not self.class_loss.is_plain:
                raise ConfigError(
                    about(
                        "learning_strategy",
                        ": pairwise has no labels; leave out class_weights, label_smoothing",
                    )
                )
            self.targets_attr = {"is_negative": TensorSpec(("batch",), torch.bool)}
            self.outputs_attr = {"probs": TensorSpec(("batch", 1), torch.float)}

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [batch, n_classes]; if pairwise, `probs` [batch, 1], the score."""
        if not self.is_pairwise:
            return super().forward(features)
        return {"probs": self.out(self.dropout(features[self.feature])).float().sigmoid()}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy; if pairwise, mean(max(0, margin - right + wrong)).

        `is_negative` marks the rows of wrong pairs, in the order of the right ones.
        """
        if not self.is_pairwise:
            return super().loss(outputs, targets)
        scores = outputs["probs"][:, 0]
        wrong = targets["is_negative"]
        # Half of the rows are wrong pairs. Sorting avoids the GPU sync of selecting by a mask.
        right, others = scores[wrong.byte().argsort(stable=True)].chunk(2)
        return F.relu(self.margin - right + others).mean()

    def loss_of_pairs(self, pairs: Scored) -> float | None:
        """Compute the pairwise loss of records in which every right text is followed by its wrong one."""
        if not (self.is_pairwise and pairs):
            return None
        scores = torch.tensor([[record["probs"]] for record, _ in pairs])
        wrong = torch.tensor([not truth["is_right"] for _, truth in pairs])
        return float(self.loss({"probs": scores}, {"is_negative": wrong}))

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `label`, `logits` and `probs`; if pairwise, only `probs`, a number."""
        if not self.is_pairwise:
            return super().decode(outputs)
        return [{"probs": score} for score in outputs["probs"][:, 0].tolist()]
