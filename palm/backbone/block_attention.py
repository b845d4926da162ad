"""Attention of packed sequences by plain matrix products, block by block, for training on a CPU.

The sequences are taken one by one: nothing is spent on padding, and what one of them needs stays in the
processor's cache. Short neighbours are taken together, and within a window long sequences are cut.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from palm.backbone.dropout import apply_mask, draw_mask
from palm.backbone.packing import Scope, Sequences

MULTIPLE = 32
"""Rows of scores are whole multiples of this, where they can be, because half-filled vectors are slow: in
bfloat16 with 12 heads it saves a third of the time at 50 tokens, 15 % at 80, and costs 10 % at 65 and 97."""

TOGETHER = 64
"""Neighbouring sequences of so many tokens in all are one block: one product costs less than many small ones,
though it computes scores between different sequences that are thrown away. A step on rows of 14 tokens became
1.2 times as fast by it, on rows of 25 tokens 1.1 times."""


def attend_by_blocks(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """What every query gathers from the keys that it sees; the arguments are those of `attend`."""
    blocks = blocks_of(scope, len(key))
    gathered: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        query, key, value, blocks, dropout_prob, scope.window is not None
    )
    return gathered


class Block(NamedTuple):
    """Where some queries lie, and the keys that one product compares them with.

    Args:
        queries: among the queries.
        keys: among the keys and values.
        end: where the keys would end if their number were a multiple of `MULTIPLE`.
        masked: True where a query may not see a key, of those up to `end`: it is of another sequence, or
            beyond the window. None where this only concerns the keys after `keys`.
    """

    queries: slice
    keys: slice
    end: int
    masked: Tensor | None

    @property
    def filled(self) -> slice:
        """The keys and, to fill up to the multiple, some that follow."""
        return slice(self.keys.start, self.end)

    @property
    def length(self) -> int:
        """Number of keys."""
        return int(self.keys.stop - self.keys.start)


@functools.lru_cache(maxsize=8)
def blocks_of(scope: Scope, tokens: int) -> list[Block]:
    """How the sequences are divided into blocks; all layers of one batch share it.

    Args:
        scope: which keys a query sees.
        tokens: number of keys, with spare ones that follow the last sequence.
    """
    window = scope.window
    (query_row, query_place), (key_row, key_place) = (_places(rows) for rows in (scope.queries, scope.keys))
    blocks = []
    for q, k, is_one in _divided(scope):
        end = k.start + math.ceil((k.stop - k.start) / MULTIPLE) * MULTIPLE
        end = end if end <= tokens else k.stop
        masked = None
        if not is_one or window is not None:
            masked = query_row[q, None] != F.pad(key_row[k], (0, end - k.stop), value=-1)
        if masked is not None and window is not None:
            distance = query_place[q, None] - F.pad(key_place[k], (0, end - k.stop))
            masked |= distance.abs() > window
        blocks.append(Block(q, k, end, masked))
    return blocks


def _divided(scope: Scope) -> Iterator[tuple[slice, slice, bool]]:
    """Queries of a block, the keys that some of them see, and whether all are of one sequence."""
    bounds, first, window = scope.keys.bounds, 0, scope.window
    for number in range(1, len(bounds) + 1):
        if number < len(bounds) and bounds[number][1] - bounds[first][0] <= TOGETHER:
            continue  # one more neighbour fits in
        queries = slice(scope.queries.bounds[first][0], scope.queries.bounds[number - 1][1])
        keys = slice(bounds[first][0], bounds[number - 1][1])
        is_one, first = first == number - 1, number
        if window is None or not is_one:
            yield queries, keys, is_one
            continue
        # A window sees what is near, so that a sequence is cut into stretches.
        stretch, shift = max(2 * window, TOGETHER), keys.start - queries.start
        for start in range(queries.start, queries.stop, stretch):
            stop = min(start + stretch, queries.stop)
            low, high = start + shift - window, stop + shift + window
            yield slice(start, stop), slice(max(low, keys.start), min(high, keys.stop)), True


def _places(rows: Sequences) -> tuple[Tensor, Tensor]:
    """For every token, the number of its sequence and its place in that."""
    starts, stops = torch.tensor(rows.bounds).unbind(1)
    row = torch.arange(len(starts)).repeat_interleave(stops - starts)
    return row, torch.arange(len(row)) - starts[row]


class _Attention(torch.autograd.Function):
    """Scores, softmax, dropout and weighted mean, with their derivatives written out.

    Autograd would make a gradient as large as all tokens for each slice: for 32 sequences of 80 tokens, with
    dropout, that took 3.7 times as long in float32 and 5 times in bfloat16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: list[Block],
        dropout_prob: float,
        overlapping: bool,
    ) -> Tensor:
        ctx.blocks, ctx.overlapping, ctx.scale = blocks, overlapping, 1 / math.sqrt(query.shape[-1])
        ctx.dropout_scale = 1 / (1 - dropout_prob)
        masks: Sequence[Tensor | None] = [None] * len(blocks)
        if dropout_prob:
            # Which weights stay, in the shape of each block's scores; one draw for all blocks.
            heads = query.shape[1]
            shapes = [(heads, b.queries.stop - b.queries.start, b.end - b.keys.start) for b in blocks]
            sizes = [math.prod(shape) for shape in shapes]
            drawn = torch.split(draw_mask(torch.Size([sum(sizes)]), dropout_prob, query.dtype), sizes)
            masks = [mask.view(shape) for mask, shape in zip(drawn, shapes, strict=True)]
        gathered, weights = _empty_like(query, blocks[-1].queries.stop), []
        for block, mask in zip(blocks, masks, strict=True):
            scores = _product(_by_head(query[block.queries]), _by_head(key[block.filled]).mT, ctx.scale)
            if block.masked is None:
                scores[..., block.length :] = -math.inf
            else:
                scores.masked_fill_(block.masked, -math.inf)
            weight = scores.softmax(-1)
            mean = _product(apply_mask(weight, mask), _by_head(value[block.filled]), ctx.dropout_scale)
            gathered[block.queries] = mean.transpose(0, 1)
            weights.append(weight)
        ctx.save_for_backward(query, key, value, *weights, *masks)
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        count = len(ctx.blocks)
        grad_query = _empty_like(query, ctx.blocks[-1].queries.stop)
        used = 0 if ctx.overlapping else ctx.blocks[-1].keys.stop
        grad_key, grad_value = _empty_like(key, used), _empty_like(value, used)
        for block, weight, mask in zip(ctx.blocks, saved[:count], saved[count:], strict=True):
            mean = _by_head(gradient[block.queries])
            grad_weight = _product(mean, _by_head(value[block.filled]).mT, ctx.dropout_scale)
            grad_scores = softmax_gradient(apply_mask(grad_weight, mask), weight)
            of_queries = _product(grad_scores, _by_head(key[block.filled]), ctx.scale)
            of_keys = _product(grad_scores.mT, _by_head(query[block.queries]), ctx.scale)
            of_values = _product(apply_mask(weight, mask).mT, mean, ctx.dropout_scale)
            grad_query[block.queries] = of_queries.transpose(0, 1)
            for grad, found in ((grad_key, of_keys), (grad_value, of_values)):
                part = found[:, : block.length].transpose(0, 1)
                # Only blocks of a window share keys; without one, nothing has to be read and added.
                grad[block.keys] = grad[block.keys] + part if ctx.overlapping else part
        return grad_query, grad_key, grad_value, None, None, None


def softmax_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the scores, from that of their softmax over the last dimension, `weight`."""
    # torch has this in one pass, as a private function that a version may lack: 3 to 4 times as fast as the
    # formula, 13 µs against 51 for 12 heads of 80 tokens in float32, 23 against 101 in bfloat16.
    if hasattr(torch, "_softmax_backward_data"):
        return torch._softmax_backward_data(gradient, weight, -1, weight.dtype)
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    products = gradient * wide
    return (products - wide * products.sum(-1, keepdim=True)).to(weight.dtype)


def _empty_like(packed: Tensor, used: int) -> Tensor:
    """A tensor to be filled up to `used`; what comes after it is zero."""
    empty = torch.empty_like(packed)
    empty[used:] = 0
    return empty


def _by_head(packed: Tensor) -> Tensor:
    """[tokens, heads, head_dim] as [heads, tokens, head_dim], also in memory."""
    return packed.transpose(0, 1).contiguous()


def _product(one: Tensor, other: Tensor, scale: float) -> Tensor:
    """scale · one · other, head by head."""
    out = one.new_empty(one.shape[0], one.shape[1], other.shape[2])
    return torch.baddbmm(out, one, other, beta=0, alpha=scale, out=out)
