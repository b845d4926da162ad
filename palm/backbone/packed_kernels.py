"""torch's two kernels for attention of packed sequences on a GPU, with dropout.

Flash attention (Dao, 2023, arXiv:2307.08691) supports half precision; the memory-efficient kernel (Rabe and
Staats, 2021, arXiv:2112.05682) also supports float32. Both repeat their dropout in the backward pass, from
the generator state that the forward pass returns. The public `varlen_attn` has neither dropout nor float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from palm.backbone.packing import Scope

aten = torch.ops.aten


def attend_packed(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """Compute `attend` for queries that `fits` allows, with the same arguments."""
    kernel = _Efficient if query.dtype == torch.float32 else _Flash
    output: Tensor = kernel.apply(query, key, value, scope, dropout_prob)  # type: ignore[no-untyped-call]
    return output


def fits(query: Tensor, scope: Scope) -> bool:
    """Check whether a kernel supports such queries: rows of whole 16 bytes, a window only in flash attention.

    Flash attention supports heads of at most 256 features on GPUs from Ampere on. With fewer queries than
    keys, it aligns the window at the end, so a window on only the first tokens is not supported.
    """
    width = query.shape[-1]
    if query.dtype == torch.float32:
        return width % 4 == 0 and scope.window is None
    if query.dtype not in (torch.bfloat16, torch.float16) or not has_flash_attention(query.device):
        return False
    return width % 8 == 0 and width <= 256 and (scope.window is None or scope.queries is scope.keys)


def has_flash_attention(device: torch.device) -> bool:
    """Check that the device is not a GPU older than Ampere, for which torch has no such kernel."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout: float) -> Tensor:
        ctx.ends = _ends(scope)
        ctx.dropout = dropout
        sides = ("window_size_left", "window_size_right")
        ctx.window = {} if scope.window is None else dict.fromkeys(sides, scope.window)
        options = {"is_causal": False, "return_debug_mask": False, **ctx.window}
        # The second to last is the generator's offset in older versions, and unused in newer ones.
        output, sums, state, offset, _ = aten._flash_attention_forward(
            query, key, value, *ctx.ends, dropout, **options
        )
        ctx.save_for_backward(query, key, value, output, sums, state, offset)
        return output  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, state, offset = ctx.saved_tensors
        parts = (gradient.contiguous(), query, key, value, output, sums)
        gradients = aten._flash_attention_backward(
            *parts, *ctx.ends, ctx.dropout, False, state, offset, **ctx.window
        )
        return *gradients, None, None


class _Efficient(torch.autograd.Function):
    # The kernel expects a batch; with offsets of sequences, it has one row.
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout: float) -> Tensor:
        ctx.ends = _ends(scope)
        ctx.dropout = dropout
        trains = any(ctx.needs_input_grad)
        output, sums, seed, offset, *_ = aten._efficient_attention_forward(
            query[None], key[None], value[None], None, *ctx.ends, dropout, 0, trains
        )
        ctx.save_for_backward(query, key, value, output, sums, seed, offset)
        return output[0]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, seed, offset = ctx.saved_tensors
        parts = (gradient.contiguous()[None], query[None], key[None], value[None], None, output)
        *gradients, _ = aten._efficient_attention_backward(
            *parts, *ctx.ends, sums, ctx.dropout, seed, offset, 0, False
        )
        return *(part[0] for part in gradients), None, None


def _ends(scope: Scope) -> tuple[Tensor, Tensor, int, int]:
    return scope.queries.offsets, scope.keys.offsets, scope.queries.longest, scope.keys.longest
