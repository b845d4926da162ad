"""Ranking: candidates in the order of their relevance, from the joint embedding of each with the query."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from palm.core.checks import choice_problems, raise_any
from palm.core.tensor_specs import NO_LABEL, Tensors
from palm.paradigm.base import HEADS
from palm.paradigm.groups import GROUPS, PER_TEXT, group_scores, real_scores
from palm.paradigm.mrc import PADDING_LOGIT
from palm.paradigm.score_head import ScoreHead


@HEADS.register("ranking")
class Ranking(ScoreHead):
    """Dropout and one linear layer that scores each candidate.

    Listwise, the softmax of an example's scores should be that of its relevances (ListNet). Pairwise, of any
    two candidates of an example the more relevant one should have the higher score (RankNet).

    Args:
        learning_strategy: 'listwise' or 'pairwise'.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: Cao et al., 2007, "Learning to rank: from pairwise approach to listwise approach", the top one
    probability; Burges et al., 2005, "Learning to rank using gradient descent", equation 3.
    """

    metrics = ("ranking",)

    def take(self, *, learning_strategy: str = "listwise") -> None:
        """Take the setting of its own, and declare tensors by example."""
        raise_any(choice_problems(("listwise", "pairwise"), learning_strategy=learning_strategy))
        self.is_pairwise = learning_strategy == "pairwise"
        self.inputs_attr = {**self.inputs_attr, **GROUPS}
        self.targets_attr = {"relevance": PER_TEXT}
        self.outputs_attr = {"scores": PER_TEXT}

    def forward(self, features: Tensors) -> Tensors:
        """`scores` [examples, candidates]; `PADDING_LOGIT` behind the last one."""
        scores = group_scores(self.out, self.dropout(features[self.feature]), features["group_rows"])
        return {"scores": scores}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean loss of the examples; pairwise of all pairs of candidates that differ in relevance."""
        scores = outputs["scores"]
        relevance = targets["relevance"]
        if self.is_pairwise:
            apart = scores[:, :, None] - scores[:, None, :]
            wanted = _is_above(relevance)
            return (F.softplus(-apart) * wanted).sum() / wanted.sum().clamp(min=1)
        # Behind the last candidate both softmaxes are 0.
        wanted = relevance.masked_fill(relevance == NO_LABEL, PADDING_LOGIT).softmax(-1)
        return -(wanted * scores.log_softmax(-1)).sum(-1).mean()

    def num_terms(self, batch: Tensors) -> int:
        """The examples; pairwise the pairs."""
        if self.is_pairwise and "relevance" in batch:
            return int(_is_above(batch["relevance"]).sum())
        return len(batch["group_rows"])

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per example `ranking`, its candidates from the best on (the first on a tie), and their `scores`."""
        return [
            {"ranking": sorted(range(len(scores)), key=lambda k: -scores[k]), "scores": scores}
            for scores in real_scores(outputs["scores"])
        ]


def _is_above(relevance: Tensor) -> Tensor:
    """Compare the candidates of each example, bool[examples, candidates, candidates]."""
    one = relevance[:, :, None]
    other = relevance[:, None, :]
    return (one > other) & (other != NO_LABEL)
