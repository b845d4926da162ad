"""torch's two kernels for attention of packed sequences on a GPU, with dropout, as one autograd function.

Flash attention (Dao, 2023, arXiv:2307.08691) takes half precision; the memory-efficient kernel (Rabe and
Staats, 2021, arXiv:2112.05682) also takes float32. Both repeat their dropout in the backward pass, from what
the forward pass says of the generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from palm.backbone.packing import Scope, Sequences

aten = torch.ops.aten


def attend_packed(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """What every query gathers from the keys that it sees; the arguments are those of `attend`.

    Heads are as wide as `fits` asks for; a window is for half precision, and as many queries as keys.
    """
    gathered: Tensor = _Packed.apply(query, key, value, scope, dropout_prob)  # type: ignore[no-untyped-call]
    return gathered


def fits(query: Tensor, scope: Scope) -> bool:
    """Whether a kernel takes such queries: rows of whole 16 bytes, and a window only for flash attention."""
    if query.dtype == torch.float32:
        return query.shape[-1] % 4 == 0 and scope.window is None
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return is_half and query.shape[-1] % 8 == 0 and (scope.window is None or scope.queries is scope.keys)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float
    ) -> Tensor:
        ctx.scope, ctx.dropout_prob, ctx.is_flash = scope, dropout_prob, query.dtype != torch.float32
        forward = _flash if ctx.is_flash else _efficient
        gathered, *kept = forward(query, key, value, scope, dropout_prob, any(ctx.needs_input_grad))
        _clear_spare(gathered, scope.queries)
        ctx.save_for_backward(query, key, value, gathered, *kept)
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        backward = _flash_gradients if ctx.is_flash else _efficient_gradients
        found = backward(ctx.scope, ctx.dropout_prob, gradient.contiguous(), ctx.saved_tensors)
        rows = (ctx.scope.queries, ctx.scope.keys, ctx.scope.keys)
        for part, sequences in zip(found, rows, strict=True):
            _clear_spare(part, sequences)
        return *found, None, None


def _clear_spare(made: Tensor, rows: Sequences) -> None:
    """Zero what follows the last sequence; the kernels leave it as it was in memory, perhaps not a number."""
    if rows.tokens is not None and rows.tokens < len(made):
        made[rows.tokens :].zero_()


def _ends(scope: Scope) -> tuple[Tensor, Tensor, int, int]:
    queries, keys = scope.queries, scope.keys
    return queries.offsets, keys.offsets, queries.longest, keys.longest


def _window(scope: Scope) -> dict[str, int]:
    names = ("window_size_left", "window_size_right")
    return {} if scope.window is None else dict.fromkeys(names, scope.window)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float, _trains: bool
) -> tuple[Tensor, ...]:
    options = {"is_causal": False, "return_debug_mask": False, **_window(scope)}
    # The last but one is the generator's offset in older versions, and unused in newer ones.
    gathered, sums, state, offset, _ = aten._flash_attention_forward(
        query, key, value, *_ends(scope), dropout_prob, **options
    )
    return gathered, sums, state, offset


def _flash_gradients(
    scope: Scope, dropout_prob: float, gradient: Tensor, saved: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    query, key, value, gathered, sums, state, offset = saved
    found: tuple[Tensor, ...] = aten._flash_attention_backward(
        *(gradient, query, key, value, gathered, sums, *_ends(scope)),
        *(dropout_prob, False, state, offset),
        **_window(scope),
    )
    return found


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float, trains: bool
) -> tuple[Tensor, ...]:
    # It asks for a batch; with the ends of sequences it is one row.
    one_row = (part[None] for part in (query, key, value))
    gathered, sums, seed, offset, *_ = aten._efficient_attention_forward(
        *one_row, None, *_ends(scope), dropout_prob, 0, trains
    )
    return gathered[0], sums, seed, offset


def _efficient_gradients(
    scope: Scope, dropout_prob: float, gradient: Tensor, saved: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    query, key, value, gathered, sums, seed, offset = saved
    one_row = [part[None] for part in (gradient, query, key, value)]
    *found, _ = aten._efficient_attention_backward(
        *(*one_row, None, gathered[None], *_ends(scope)),
        *(sums, dropout_prob, seed, offset, 0, False),
    )
    return tuple(part[0] for part in found)
