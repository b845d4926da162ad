"""Heads on examples of several texts, each a row of the batch: multiple choice, and ranking of candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.saved import NO_LABEL, Specs, Tensors, TensorSpec
from palm.paradigm.base import HEADS
from palm.paradigm.class_head import SMALLEST, ClassHead
from palm.paradigm.mrc import PADDING_LOGIT
from palm.paradigm.regression import ScoreHead

PER_TEXT = TensorSpec(("examples", "texts"), torch.float)

GROUPS: Specs = {"group_rows": TensorSpec(("examples", "texts"), torch.long)}
"""The rows of each example's texts in the batch, an input of these heads."""


def gather_groups(values: Tensor, group_rows: Tensor) -> Tensor:
    """Gather the values of each example's texts; the values in the padding are arbitrary.

    Args:
        values: [texts of all examples, width].
        group_rows: [examples, texts], -1 for padding.

    Returns:
        [examples, texts, width].
    """
    picked = values.index_select(0, group_rows.clamp(min=0).flatten())
    return picked.view(*group_rows.shape, values.shape[-1])


def group_scores(layer: nn.Module, embeddings: Tensor, group_rows: Tensor) -> Tensor:
    """Score every text, [examples, texts]; padding has `PADDING_LOGIT`."""
    scores = gather_groups(layer(embeddings), group_rows)[..., 0].float()
    return scores.masked_fill(group_rows < 0, PADDING_LOGIT)


def unpadded(scores: Tensor) -> list[list[float]]:
    """Return the scores of each example without padding."""
    return [[score for score in row if score > PADDING_LOGIT] for row in scores.tolist()]


@HEADS.register("multiple_choice")
class MultipleChoice(ClassHead):
    """Dropout and one linear layer that scores each choice; softmax over the choices of an example.

    Source: Radford et al., 2018, "Improving language understanding by generative pre-training", figure 1.
    """

    card = ("multiple-choice", "multiple choice")
    example = '[("a text", ["a choice", "another one"])]'
    metrics = ("accuracy",)

    def __init__(
        self,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
    ) -> None:
        # The number of choices varies by row; 2 is the minimum.
        super().__init__(2, hidden_size, dropout_prob, initializer_range)
        self.inputs_attr = {**self.inputs_attr, **GROUPS}
        self.targets_attr = {"label_ids": TensorSpec(("examples",), torch.long)}
        self.outputs_attr = {"logits": PER_TEXT, "probs": PER_TEXT}

    @property
    def num_scores(self) -> int:
        return 1

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [examples, choices]; padding has `PADDING_LOGIT` and 0."""
        logits = group_scores(self.out, self.dropout(features[self.feature]), features["group_rows"])
        return {"logits": logits, "probs": self.probabilities(logits)}

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per example the values of `ClassHead.decode`, with `logits` and `probs` without padding."""
        records = super().decode(outputs)
        for record, logits in zip(records, unpadded(outputs["logits"]), strict=True):
            record["logits"] = logits
            record["probs"] = record["probs"][: len(logits)]
        return records


@HEADS.register("ranking")
@dataclass(eq=False, repr=False, kw_only=True)
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

    learning_strategy: Literal["listwise", "pairwise"] = "listwise"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_pairwise = self.learning_strategy == "pairwise"
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
