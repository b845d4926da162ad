"""Steps of AdamW on those rows of a table that ever had a gradient; the others only decay."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from palm.core.numerics.sparse_embedding import summed
from palm.optimizer.moments import Group, fused_adamw

MOST = 0.1
"""The fraction of a table's rows with moments above which all rows are passed over.

A step of MiniLM's size on 32 short rows, interleaved, Intel Xeon with AMX: 13 % faster where texts have 800
different words, 9 % with 2500, 3 % with 8000 while few of them have been seen.
"""


class _Known(NamedTuple):
    """The rows of a table that have moments, after `step` steps.

    Args:
        mean: the first moment.
        step: of the table.
        rows: bool[rows]; None where they are more than `MOST`.
    """

    mean: Tensor
    step: int
    rows: Tensor | None


def step_by_rows(optimizer: torch.optim.Optimizer) -> None:
    """Let an AdamW take sparse gradients, of matrices, with the results that dense ones have, bit by bit.

    A row that never had a gradient has moments of zero, and of its step the decay alone is left. So it is
    AdamW's own step, unlike that of `torch.optim.SparseAdam`, where moments rest while a row has no gradient.

    Args:
        optimizer: its state has torch's names; the rows that have moments are not saved in it.
    """
    known: dict[Tensor, _Known] = {}
    taken: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for table in group["params"]:
                if table.grad is None or not table.grad.is_sparse:
                    continue
                gradient = summed(table.grad)
                state = optimizer.state[table]
                known[table] = _with_moments(state, table, gradient, known.get(table))
                if (rows := known[table].rows) is None:
                    table.grad = gradient.to_dense()
                    continue
                _move(group, state, table, gradient, rows)
                taken.append((table, gradient))
                table.grad = None  # the optimizer passes over it

    def after(*_: Any) -> None:
        for table, gradient in taken:
            table.grad = gradient
        taken.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    optimizer.takes_sparse_gradients = True  # type: ignore[attr-defined]


def takes_sparse_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether gradients may be sparse; see `step_by_rows`."""
    return bool(getattr(optimizer, "takes_sparse_gradients", False))


def _with_moments(state: dict[str, Tensor], table: Tensor, gradient: Tensor, known: _Known | None) -> _Known:
    """Find the rows that have moments after the coming step."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(table)
        state["exp_avg_sq"] = torch.zeros_like(table)
    mean = state["exp_avg"]
    step = int(state["step"])
    if known is not None and known.mean is mean and known.rows is None:
        return _Known(mean, step + 1, None)
    if known is not None and known.mean is mean and known.rows is not None and known.step == step:
        rows = known.rows
    else:  # a dense gradient, or a checkpoint, came between
        rows = (mean != 0).any(1) | (state["exp_avg_sq"] != 0).any(1)
    rows = rows.index_fill(0, gradient.indices()[0], True)
    return _Known(mean, step + 1, rows if int(rows.sum()) <= MOST * len(table) else None)


def _move(group: Group, state: dict[str, Tensor], table: Tensor, gradient: Tensor, rows: Tensor) -> None:
    """Make one step of a table."""
    if group["weight_decay"]:
        table.mul_(1 - group["lr"] * group["weight_decay"])
    state["step"] += 1
    ids = rows.nonzero().squeeze(1)
    moved = [tensor[ids] for tensor in (table, state["exp_avg"], state["exp_avg_sq"])]
    dense = torch.zeros_like(moved[0])
    dense[(rows.cumsum(0) - 1)[gradient.indices()[0]]] = gradient.values()
    tensors = [[moved[0]], [dense], [moved[1]], [moved[2]]]
    fused_adamw(tensors, state["step"], lr=group["lr"], betas=group["betas"], eps=group["eps"])
    for tensor, values in zip((table, state["exp_avg"], state["exp_avg_sq"]), moved, strict=True):
        tensor.index_copy_(0, ids, values)
