"""Sentence embeddings from the vectors of packed tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from palm.backbone.packing import Packing

Pooling = Literal["cls", "mean", "max", "model"]
"""The first token, the mean or the maximum of all tokens, or what the pretrained directory says."""


def pooled(tokens: Tensor, packing: Packing, pooling: str) -> Tensor:
    """Pool every row's tokens into one vector.

    Args:
        tokens: packed, [tokens, width].
        packing: their layout.
        pooling: 'cls', 'mean' or 'max'.

    Returns:
        [batch, width], in the dtype of `tokens`; means are summed in float32.
    """
    if pooling == "cls":
        return tokens[packing.first]
    rows = len(packing.mask)
    row_of = packing.positions // packing.mask.shape[1]
    real = tokens[: len(packing.positions)]
    if pooling == "max":
        index = row_of[:, None].expand_as(real)
        lowest = real.new_full((rows, real.shape[1]), -torch.inf)
        return lowest.scatter_reduce(0, index, real, "amax")
    lengths = packing.sequences.offsets.diff()[:, None]
    sums = torch.zeros(rows, real.shape[1], device=real.device).index_add(0, row_of, real.float())
    return (sums / lengths).to(tokens.dtype)
