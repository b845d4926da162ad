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
        [batch, width]; float32 for means.
    """
    if pooling == "cls":
        return tokens[packing.first]
    rows = packing.unpack(tokens)  # [batch, seq, width]
    mask = packing.mask[..., None]
    if pooling == "max":
        return rows.masked_fill(~mask, -torch.inf).amax(1)
    return (rows.float() * mask).sum(1) / mask.sum(1)
