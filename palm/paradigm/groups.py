"""Helpers for heads on examples of several texts, each of which is a row of the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palm.core.tensor_specs import Specs, TensorSpec
from palm.paradigm.mrc import PADDING_LOGIT

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
