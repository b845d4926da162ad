"""Packed sequences, and attention within them by its definition."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from palm.backbone.cpu_kernels import MULTIPLE
from palm.backbone.packing import Packing, Scope

LENGTHS = (7, 1, 40, 2, 20, 3, 30, 33, 64, 64, 65, MULTIPLE, 2, 3)
"""Some that are taken together and some alone; whole lines and others, the last cannot be filled up."""

Case = tuple[Tensor, Tensor, Tensor, Scope]


def case(
    lengths: tuple[int, ...] = LENGTHS,
    first_only: bool = False,
    dtype: torch.dtype = torch.float64,
    window: int | None = None,
) -> Case:
    torch.manual_seed(0)
    packing = Packing.of(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])
    query, key, value = torch.randn(3, sum(lengths), 2, 8, dtype=dtype).unbind(0)
    return query[packing.first] if first_only else query, key, value, packing.scope(first_only, window)


def by_definition(query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> Tensor:
    """softmax(q · k / sqrt(d)) · v, a sequence and a head at a time."""
    rows = []
    for (q0, q1), (k0, k1) in zip(scope.queries.bounds, scope.keys.bounds, strict=True):
        heads = []
        for head in range(query.shape[1]):
            scores = query[q0:q1, head] @ key[k0:k1, head].T / math.sqrt(query.shape[2])
            if scope.window is not None:
                distance = torch.arange(q1 - q0)[:, None] - torch.arange(k1 - k0)
                scores = scores.masked_fill(distance.abs() > scope.window, -math.inf)
            heads.append(scores.softmax(-1) @ value[k0:k1, head])
        rows.append(torch.stack(heads, 1))
    return torch.cat(rows)
