"""Ranking of candidates by relevance, on the joint embedding of the query with each candidate."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from palm.core.component import choice_problems, raise_any
from palm.core.tensor_specs import NO_LABEL, Tensors
from palm.paradigm.base import HEADS
from palm.paradigm.class_loss import SMALLEST
from palm.paradigm.groups import GROUPS, PER_TEXT, group_scores, unpadded
from palm.paradigm.score_head import ScoreHead


@HEADS.register("ranking")
class Ranking(ScoreHead):
    """Dropout and one linear layer that scores each candidate.

    Listwise, the softmax of an example's scores should equal the shares of its relevances in their sum; an
    example without a relevant candidate has no loss. Pairwise, the more relevant of any two candidates of an
    example should have the higher score (RankNet).

    Args:
        learning_strategy: 'listwise' or 'pairwise'.

    Raises:
        ConfigError: if settings are invalid; lists all of them.

    Source: Bruch et al., 2019, "An analysis of the softmax cross entropy loss for learning-to-rank with
    binary relevance", equation 3; Burges et al., 2005, "Learning to rank using gradient descent", equation 3.
    """

    card = ("text-ranking", "ranking of candidates by relevance")
    example = '[("a query", ["a candidate", "another one"])]'
    metrics = ("ranking",)

    def __init__(
        self,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        learning_strategy: str = "listwise",
    ) -> None:
        super().__init__(hidden_size, dropout_prob, initializer_range)
        raise_any(choice_problems(("listwise", "pairwise"), learning_strategy=learning_strategy))
        self.is_pairwise = learning_strategy == "pairwise"
        self.inputs_attr = {**self.inputs_attr, **GROUPS}
        self.targets_attr = {"relevance": PER_TEXT}
        self.outputs_attr = {"scores": PER_TEXT}

    def forward(self, features: Tensors) -> Tensors:
        """`scores` [examples, candidates]; padding has `PADDING_LOGIT`."""
        scores = group_scores(self.out, self.dropout(features[self.feature]), features["group_rows"])
        return {"scores": scores}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean loss over examples with a relevant candidate; if pairwise, over unequal pairs."""
        scores = outputs["scores"]
        relevance = targets["relevance"]
        if self.is_pairwise:
            differences = scores[:, :, None] - scores[:, None, :]
            wanted = _is_more_relevant(relevance)
            return (F.softplus(-differences) * wanted).sum() / wanted.sum().clamp(min=1)
        gains = relevance.clamp(min=0)  # 0 in padding
        total = gains.sum(-1, keepdim=True)
        losses = -(gains / total.clamp(min=SMALLEST) * scores.log_softmax(-1)).sum()
        return losses / (total > 0).sum().clamp(min=1)

    def num_terms(self, batch: Tensors) -> int:
        """Count the examples with a relevant candidate (without targets, all); if pairwise, the pairs."""
        if "relevance" not in batch:
            return len(batch["group_rows"])
        relevance = batch["relevance"]
        return int((_is_more_relevant(relevance) if self.is_pairwise else (relevance > 0).any(-1)).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per example `ranking`, its candidates from best to worst (stable), and `scores`, in input order."""
        return [
            {"ranking": sorted(range(len(scores)), key=lambda k: -scores[k]), "scores": scores}
            for scores in unpadded(outputs["scores"])
        ]


def _is_more_relevant(relevance: Tensor) -> Tensor:
    """Compare all pairs of candidates of each example, bool[examples, candidates, candidates]."""
    one = relevance[:, :, None]
    other = relevance[:, None, :]
    return (one > other) & (other != NO_LABEL)
