"""Heads on examples of several texts, which stand below one another in a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palm.core.tensor_specs import Specs, TensorSpec
from palm.paradigm.mrc import PADDING_LOGIT

PER_TEXT = TensorSpec(("examples", "texts"), torch.float)

GROUPS: Specs = {"group_rows": TensorSpec(("examples", "texts"), torch.long)}
"""The rows of each example, which such a head reads beside a feature of every text."""


def of_groups(values: Tensor, group_rows: Tensor) -> Tensor:
    """The values of each example's texts; behind the last one those of any other.

    Args:
        values: [texts of all examples, width].
        group_rows: [examples, texts], -1 behind the last one.

    Returns:
        [examples, texts, width].
    """
    picked = values.index_select(0, group_rows.clamp(min=0).flatten())
    return picked.view(*group_rows.shape, values.shape[-1])


def group_scores(layer: nn.Module, embeddings: Tensor, group_rows: Tensor) -> Tensor:
    """One score of every text, [examples, texts]; `PADDING_LOGIT` behind the last one."""
    scores = of_groups(layer(embeddings), group_rows)[..., 0].float()
    return scores.masked_fill(group_rows < 0, PADDING_LOGIT)


def real_scores(scores: Tensor) -> list[list[float]]:
    """The scores of each example without padding."""
    return [[score for score in row if score > PADDING_LOGIT] for row in scores.tolist()]
