"""torch's two kernels for attention of packed sequences on a GPU, with dropout.

Flash attention (Dao, 2023, arXiv:2307.08691) takes half precision; the memory-efficient kernel (Rabe and
Staats, 2021, arXiv:2112.05682) also takes float32. Both repeat their dropout in the backward pass, from what
the forward pass says of the generator. The public `varlen_attn` has neither dropout nor float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from palm.backbone.packing import Scope

aten = torch.ops.aten


def attend_packed(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """Compute `attend` for queries that `fits` allows; the arguments are the same."""
    kernel = _Efficient if query.dtype == torch.float32 else _Flash
    gathered: Tensor = kernel.apply(query, key, value, scope, dropout_prob)  # type: ignore[no-untyped-call]
    return gathered


def fits(query: Tensor, scope: Scope) -> bool:
    """True if a kernel takes such queries: rows of whole 16 bytes, and a window only for flash attention.

    Flash attention takes heads of at most 256 features, on GPUs from Ampere on. A window is counted from the
    end where there are fewer queries than keys, so not for first tokens alone.
    """
    width = query.shape[-1]
    if query.dtype == torch.float32:
        return width % 4 == 0 and scope.window is None
    if query.dtype not in (torch.bfloat16, torch.float16) or not has_flash_attention(query.device):
        return False
    return width % 8 == 0 and width <= 256 and (scope.window is None or scope.queries is scope.keys)


def has_flash_attention(device: torch.device) -> bool:
    """True unless the device is a GPU older than Ampere, for which torch has no such kernel."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout: float) -> Tensor:
        ctx.ends = _ends(scope)
        ctx.dropout = dropout
        sides = ("window_size_left", "window_size_right")
        ctx.window = {} if scope.window is None else dict.fromkeys(sides, scope.window)
        options = {"is_causal": False, "return_debug_mask": False, **ctx.window}
        # The last but one is the generator's offset in older versions, and unused in newer ones.
        gathered, sums, state, offset, _ = aten._flash_attention_forward(
            query, key, value, *ctx.ends, dropout, **options
        )
        ctx.save_for_backward(query, key, value, gathered, sums, state, offset)
        return gathered  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, gathered, sums, state, offset = ctx.saved_tensors
        parts = (gradient.contiguous(), query, key, value, gathered, sums)
        gradients = aten._flash_attention_backward(
            *parts, *ctx.ends, ctx.dropout, False, state, offset, **ctx.window
        )
        return *gradients, None, None


class _Efficient(torch.autograd.Function):
    # It asks for a batch; with the ends of sequences, that is one row.
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout: float) -> Tensor:
        ctx.ends = _ends(scope)
        ctx.dropout = dropout
        trains = any(ctx.needs_input_grad)
        gathered, sums, seed, offset, *_ = aten._efficient_attention_forward(
            query[None], key[None], value[None], None, *ctx.ends, dropout, 0, trains
        )
        ctx.save_for_backward(query, key, value, gathered, sums, seed, offset)
        return gathered[0]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, gathered, sums, seed, offset = ctx.saved_tensors
        parts = (gradient.contiguous()[None], query[None], key[None], value[None], None, gathered)
        *gradients, _ = aten._efficient_attention_backward(
            *parts, *ctx.ends, sums, ctx.dropout, seed, offset, 0, False
        )
        return *(part[0] for part in gradients), None, None


def _ends(scope: Scope) -> tuple[Tensor, Tensor, int, int]:
    return scope.queries.offsets, scope.keys.offsets, scope.queries.longest, scope.keys.longest
