"""Gradients of an embedding table that hold only the rows that were looked up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F


@contextmanager
def sparse_allowed(is_allowed: bool) -> Iterator[None]:
    """Within it, `looked_up` gives tables sparse gradients; of MiniLM's words a dense one is 47 MB."""
    token = _ALLOWED.set(is_allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def looked_up(table: Tensor, ids: Tensor, alone: bool) -> Tensor:
    """Rows of a table.

    Args:
        table: [rows, width].
        ids: [...].
        alone: the table has no gradient from elsewhere, which would be dense.

    Returns:
        [..., width].
    """
    # Kernels take numbers 64 at a time: of other widths some would be added in another order.
    is_sparse = alone and _ALLOWED.get() and len(table) > LEAST * ids.numel() and table.shape[1] % 64 == 0
    # A hook of the user's may not know sparse tensors.
    return F.embedding(ids, table, sparse=is_sparse and not table._backward_hooks)


def summed(gradient: Tensor) -> Tensor:
    """A sparse gradient [rows, width] with each row once, in ascending order."""
    if gradient.is_coalesced():
        return gradient
    ids, places = gradient._indices()[0].unique(return_inverse=True)  # type: ignore[no-untyped-call]
    # `coalesce` adds the parts of a row in another order than the dense gradient does.
    values = gradient.new_zeros((len(ids), gradient.shape[1]), layout=torch.strided)
    values.index_add_(0, places, gradient._values())
    return torch.sparse_coo_tensor(
        ids[None], values, gradient.shape, is_coalesced=True, check_invariants=False
    )


def stored_numbers(parameter: Tensor) -> Tensor:
    """The gradient of a parameter; of a sparse one its rows, each once: writing to them is writing to it."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    parameter.grad = summed(gradient)
    return parameter.grad.values()


LEAST = 8
"""A gradient is sparse where a table has so many rows for each that is looked up."""

_ALLOWED: ContextVar[bool] = ContextVar("row_gradients", default=False)
