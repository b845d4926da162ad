"""Steps of AdamW on those rows of a table that ever had a gradient; the others only decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.numerics.sparse_embedding import summed
from palm.optimizer.moments import Group, fused_adamw

MOST = 0.5
"""The share of a table's rows above which all of them are passed over, which needs no gradient of pieces."""

GAP = 4
"""Rows that are apart by no more are one piece: a row of 384 numbers takes 0.4 µs, a piece of its own
some 2 µs. Of 3000 words of 30522, drawn as often as texts have them, 1500 pieces are made, of 4600 rows."""


class _Pieces(NamedTuple):
    """Rows of a table, among them all with moments; those between change no more than by decay.

    Args:
        rows: true for these rows, bool[rows].
        places: for these rows, which of them they are, int64[rows].
        tensors: the table and its moments, each as a list of views of the pieces.
    """

    rows: Tensor
    places: Tensor
    tensors: list[list[Tensor]]


class _Known(NamedTuple):
    """What the first `step` steps left of a table.

    Args:
        tensors: the table and its moments.
        step: of the table.
        pieces: where moments are; None where that is more than `MOST` of all rows.
    """

    tensors: Sequence[Tensor]
    step: int
    pieces: _Pieces | None


def step_by_rows(optimizer: torch.optim.Optimizer) -> None:
    """Let an AdamW take sparse gradients, of matrices, with the results that dense ones have, bit by bit.

    A row that never had a gradient has moments of zero, and of its step the decay alone is left. So it is
    AdamW's own step, unlike that of `torch.optim.SparseAdam`, where moments rest while a row has no gradient.

    Args:
        optimizer: its state has torch's names; what is known of rows is no part of it, but found anew.
    """
    known: dict[Tensor, _Known] = {}
    taken: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for table in group["params"]:
                if table.grad is None or not table.grad.is_sparse:
                    continue
                gradient, state = summed(table.grad), optimizer.state[table]
                found = known[table] = _found(state, table, gradient, known.get(table))
                if found.pieces is None:
                    table.grad = gradient.to_dense()
                    continue
                _move(group, state, table, gradient, found.pieces)
                taken.append((table, gradient))
                table.grad = None  # the optimizer passes over it

    def after(*_: Any) -> None:
        for table, gradient in taken:
            table.grad = gradient
        taken.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    _TAKING.add(optimizer)


def takes_sparse_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether gradients may be sparse; see `step_by_rows`."""
    return optimizer in _TAKING


_TAKING: WeakSet[torch.optim.Optimizer] = WeakSet()


def _found(state: dict[str, Tensor], table: Tensor, gradient: Tensor, known: _Known | None) -> _Known:
    """Which rows have moments after the step that comes."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
    step, ids = int(state["step"]), gradient.indices()[0]
    tensors = table.detach(), state["exp_avg"], state["exp_avg_sq"]
    there = [] if known is None else [tensor.data_ptr() for tensor in known.tensors]
    if there != [tensor.data_ptr() for tensor in tensors]:
        known = None
    if known is not None and known.pieces is None:
        return _Known(tensors, step + 1, None)
    # Otherwise a dense gradient, or a checkpoint, came between.
    pieces = known.pieces if known is not None and known.step == step else None
    if pieces is None or not pieces.rows[ids].all():
        rows = (tensors[1] != 0).any(1) | (tensors[2] != 0).any(1) if pieces is None else pieces.rows
        pieces = _pieces(tensors, rows.index_fill(0, ids, True))
    are_few = int(pieces.rows.sum()) <= MOST * len(table)
    return _Known(tensors, step + 1, pieces if are_few else None)


def _pieces(tensors: Sequence[Tensor], rows: Tensor) -> _Pieces:
    """Some rows of a table and its moments, and those in small gaps between them."""
    ids = rows.nonzero().squeeze(1)
    breaks = ids.diff() > GAP
    starts = ids[F.pad(breaks, (1, 0), value=True)[: len(ids)]].tolist()
    ends = (ids[F.pad(breaks, (0, 1), value=True)[: len(ids)]] + 1).tolist()
    bounds = list(zip(starts, ends, strict=True))
    rows = torch.zeros_like(rows)
    for start, end in bounds:
        rows[start:end] = True
    views = [[tensor[start:end] for start, end in bounds] for tensor in tensors]
    return _Pieces(rows, rows.cumsum(0) - 1, views)


def _move(group: Group, state: dict[str, Tensor], table: Tensor, gradient: Tensor, pieces: _Pieces) -> None:
    """One step of a table."""
    if group["weight_decay"]:
        table.mul_(1 - group["lr"] * group["weight_decay"])
    state["step"] += 1
    parameters, means, squares = pieces.tensors
    dense = table.new_zeros(sum(map(len, parameters)), table.shape[1])
    dense.index_copy_(0, pieces.places[gradient.indices()[0]], gradient.values())
    own = list(torch.split(dense, [len(piece) for piece in parameters]))
    fused_adamw(
        *([parameters, own, means, squares], state["step"]),
        lr=group["lr"],
        betas=group["betas"],
        eps=group["eps"],
    )
