"""Kernels for training on a CPU: dropout with random bytes, and attention of packed sequences.

Dropout: most of the cost of `F.dropout` is drawing one number per value. Without random bytes, a training
step on pairs of texts (MiniLM, one thread, 15 alternating rounds, bf16 with AMX) takes 7 % longer for hidden
states and 13 % for attention; on short rows 5 and 3 %; without AMX 2 and 3 %, in fp32 2 and 5 %.

Attention: sequences of similar length are padded to one and multiplied together, because many small products
cost more to call than to compute; a long one is multiplied alone, so that its data stays in the cache.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from palm.backbone.packing import Scope

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a value -> the integer type of the same size."""


class Dropout(nn.Dropout):
    """`nn.Dropout` with random bytes on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply dropout to a tensor of any shape while training."""
        return dropout(input, self.p) if self.training and self.p > 0 else input


def dropout(values: Tensor, probability: float) -> Tensor:
    """Zero every value with a probability, and scale the others to preserve the expectation."""
    if values.is_cuda:
        return F.dropout(values, probability)
    dropped: Tensor = _ByteDropout.apply(values, probability)  # type: ignore[no-untyped-call]
    return dropped


def draw_mask(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """Draw a mask of integers of the size of `dtype`: all bits set for kept values, none for dropped ones.

    Every value is dropped independently with exactly this probability, to the 53 bits of a double. The draws
    come from torch's CPU generator, so a checkpoint of it reproduces them.
    """
    # One draw of 64 bits decides over eight values. For 2560 · 384 values in bfloat16, a batch of MiniLM,
    # one thread draws this mask in 0.64 ms and applies it in 0.54; F.dropout takes 6.4.
    count = math.prod(shape)
    draws = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)
    threshold = math.floor(256 * probability)
    # numpy compares bytes ten times faster than torch (0.04 ms instead of 0.44).
    kept = draws.numpy().view(np.uint8)[:count] >= threshold
    # A byte has steps of 1/256: for 0.1 it drops 25 of 256, and one in 385 of the rest must be dropped too.
    # Drawing the positions of so few costs 0.1 ms; searching for bytes that need more bits, 0.5 ms.
    kept[successes(count, (256 * probability - threshold) / (256 - threshold))] = False
    return torch.from_numpy(kept.view(np.int8)).to(_INTEGERS[dtype.itemsize]).neg_().view(shape)


def successes(count: int, probability: float) -> npt.NDArray[np.int64]:
    """Sample the indices of successes among `count` independent trials, ascending, with one draw per success.

    Args:
        count: number of trials.
        probability: probability of a success, well below 1.
    """
    if not probability:
        return np.empty(0, dtype=np.int64)
    # The distance between successes is geometrically distributed. This number of them nearly always suffices.
    expected = count * probability
    number = int(expected + 6 * math.sqrt(expected)) + 16
    gaps = torch.empty(number, dtype=torch.float64).geometric_(probability)
    while gaps.sum() <= count:
        gaps = torch.cat([gaps, torch.empty(number, dtype=torch.float64).geometric_(probability)])
    indices = gaps.cumsum(0).sub_(1).long().numpy()
    return indices[: np.searchsorted(indices, count)]


def apply_mask(values: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the values that a mask of `draw_mask` drops; None for no mask."""
    if mask is None:
        return values
    # A bitwise "and" needs no conversion to a float or bool and takes a third of the time of either.
    return values.view(mask.dtype).bitwise_and(mask).view(values.dtype)


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float) -> Tensor:
        mask = draw_mask(values.shape, probability, values.dtype)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - probability)
        return apply_mask(values, mask).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(gradient, mask).mul_(ctx.scale), None


MULTIPLE = 32
"""Rows of scores are padded to a multiple of this, because half-filled vectors are slow: in bfloat16 with 12
heads, it saves a third of the time at 50 tokens, 15 % at 80, and costs 10 % at 65 and 97."""

QUERY_MULTIPLE = 16
"""Short sequences are grouped by the next multiple of this; in bfloat16 every new size is compiled."""

MAX_GROUPED = 64
"""Longer sequences are computed alone."""

Bounds = tuple[int, int]

Part = tuple[Bounds, Bounds, int]
"""Bounds of queries, of the keys that any of them sees, and the place of the first query among these."""


class Group(NamedTuple):
    """Sequences that are multiplied together.

    Args:
        shape: products (sequences · heads), queries and keys of each, padding included.
        queries: their rows in `Layout.query_rows`.
        keys: their rows in `Layout.key_rows`.
        scores: their scores among those of all groups.
        bias: added to the scores, [sequences, 1, 1 or queries, keys]: minus infinity on padding and outside a
            window, otherwise 0; None if nothing is hidden.
    """

    shape: tuple[int, int, int]
    queries: slice
    keys: slice
    scores: slice
    bias: Tensor | None


@dataclass(frozen=True)
class Layout:
    """The groups of a batch, and the order of their rows.

    Args:
        groups: the groups.
        query_rows: row in [tokens · heads] of every query, by group, sequence, head and column.
        query_places: index in `query_rows` of every row in [tokens · heads].
        key_rows: row in [tokens · heads] of every key, likewise.
        key_places: index in `key_rows` of every row in [tokens · heads]; None if groups share keys.
        real: 1 for queries, 0 for padding, float32[rows, 1]; None without padding.
    """

    groups: Sequence[Group]
    query_rows: Tensor
    query_places: Tensor
    key_rows: Tensor
    key_places: Tensor | None
    real: Tensor | None


def attend_by_groups(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """Compute `attend`, with the same arguments."""
    layout = layout_of(scope, key.shape[1])
    output: Tensor = _Attention.apply(query, key, value, layout, dropout_prob)  # type: ignore[no-untyped-call]
    return output


@functools.lru_cache(maxsize=8)
def layout_of(scope: Scope, num_heads: int) -> Layout:
    """Group the sequences of a batch; cached, because all layers need the same groups."""
    grouped = list(_grouped(scope))
    groups: list[Group] = []
    begin = [0, 0, 0]
    for parts in grouped:
        queries = max(stop - start for (start, stop), _, _ in parts)
        keys = max(stop - start for _, (start, stop), _ in parts)
        if queries > 1 and len(parts) > 1:
            queries = _rounded_up(queries, QUERY_MULTIPLE)
        keys = _rounded_up(keys, MULTIPLE)
        products = len(parts) * num_heads
        end = [b + products * count for b, count in zip(begin, (queries, keys, queries * keys), strict=True)]
        spans = [slice(*span) for span in zip(begin, end, strict=True)]
        bias = _bias(parts, queries, keys, scope.window)
        groups.append(Group((products, queries, keys), spans[0], spans[1], spans[2], bias))
        begin = end
    queries_of = [[part[0] for part in parts] for parts in grouped]
    keys_of = [[part[1] for part in parts] for parts in grouped]
    query_rows, query_places, real = _order(queries_of, [group.shape[1] for group in groups], num_heads)
    key_rows, key_places, _ = _order(keys_of, [group.shape[2] for group in groups], num_heads)
    return Layout(
        groups,
        query_rows,
        query_places,
        key_rows,
        key_places if scope.window is None else None,
        None if bool(real.all()) else real.float()[:, None],
    )


def _rounded_up(count: int, multiple: int) -> int:
    return math.ceil(count / multiple) * multiple


def _grouped(scope: Scope) -> Iterable[Sequence[Part]]:
    """Divide the sequences into groups; within a window, into stretches with the keys nearby."""
    pairs = zip(scope.queries.bounds, scope.keys.bounds, strict=True)
    if scope.window is not None:
        # Not several together, because a sequence's bits must not depend on its neighbours in predictions.
        return [[part] for queries, keys in pairs for part in _stretches(queries, keys, scope.window)]
    groups: dict[int, list[Part]] = defaultdict(list)
    for number, (queries, keys) in enumerate(pairs):
        length = keys[1] - keys[0]
        group = -number - 1 if length > MAX_GROUPED else math.ceil(length / QUERY_MULTIPLE)
        groups[group].append((queries, keys, 0))
    return groups.values()


def _stretches(queries: Bounds, keys: Bounds, window: int) -> Iterator[Part]:
    # With stretches of twice the window, about half of the computed scores are of visible keys.
    length = 2 * max(window, MULTIPLE)
    shift = keys[0] - queries[0]
    for start in range(*queries, length):
        stop = min(start + length, queries[1])
        near = max(start + shift - window, keys[0]), min(stop + shift + window, keys[1])
        yield (start, stop), near, start + shift - near[0]


def _order(
    groups: Sequence[Sequence[Bounds]], lengths: Sequence[int], num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the rows of groups in [tokens · heads], the places of tokens among them, and which are real.

    Args:
        groups: bounds of the members of each group.
        lengths: the length to which the members of each group are padded.
        num_heads: number of heads.
    """
    rows = []
    real = []
    for members, length in zip(groups, lengths, strict=True):
        starts, stops = torch.tensor(members).unbind(1)
        within = torch.arange(length).expand(num_heads, -1)
        tokens = starts[:, None, None] + within  # [members, heads, length]
        real.append((tokens < stops[:, None, None]).flatten())
        # Padding repeats the member's last token.
        tokens = torch.minimum(tokens, stops[:, None, None] - 1)
        rows.append((tokens * num_heads + torch.arange(num_heads)[:, None]).flatten())
    every_row = torch.cat(rows)
    is_real = torch.cat(real)
    places = torch.empty(int(every_row.max()) + 1, dtype=torch.long)
    places[every_row[is_real]] = is_real.nonzero().squeeze(1)
    return every_row, places, is_real


def _bias(parts: Sequence[Part], queries: int, keys: int, window: int | None) -> Tensor | None:
    columns = torch.arange(keys)
    lengths = torch.tensor([stop - start for _, (start, stop), _ in parts])
    hidden = columns >= lengths[:, None, None]  # [parts, 1, keys]
    if window is not None:
        places = torch.arange(queries)[:, None] + parts[0][2]
        hidden = hidden | ((places - columns).abs() > window)
    return torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)[:, None] if bool(hidden.any()) else None


class _Attention(torch.autograd.Function):
    """Scores, softmax, dropout and weighted mean, with explicit derivatives.

    Autograd would allocate a gradient of the size of all tokens for each slice: for 32 sequences of 80 tokens
    with dropout, that took 3.7 times as long in float32 and 5 times in bfloat16.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout_prob: float
    ) -> Tensor:
        ctx.layout = layout
        ctx.scale = 1 / math.sqrt(query.shape[-1])
        ctx.dropout_scale = 1 / (1 - dropout_prob)
        ctx.shapes = query.shape, key.shape
        q = _gathered(query, layout.query_rows)
        k, v = (_gathered(part, layout.key_rows) for part in (key, value))
        weights = q.new_empty(layout.groups[-1].scores.stop)
        mask = draw_mask(weights.shape, dropout_prob, q.dtype) if dropout_prob else None
        means = torch.empty_like(q)
        for group in layout.groups:
            weight = weights[group.scores].view(group.shape)
            scores = product(_view(q, group.queries, group), _view(k, group.keys, group).mT, ctx.scale)
            if group.bias is not None:
                scores.view(len(group.bias), -1, *scores.shape[1:]).add_(group.bias.to(scores.dtype))
            torch.softmax(scores, -1, out=weight)
            kept = apply_mask(weight, None if mask is None else mask[group.scores].view(group.shape))
            product(kept, _view(v, group.keys, group), ctx.dropout_scale, _view(means, group.queries, group))
        ctx.save_for_backward(q, k, v, weights, mask)
        return _put(means, layout.query_places, query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        layout: Layout = ctx.layout
        mean = _gathered(gradient, layout.query_rows)
        if layout.real is not None:
            mean.mul_(layout.real.to(mean.dtype))
        grad_q, grad_k, grad_v = (torch.empty_like(part) for part in (q, k, v))
        for group in layout.groups:
            own_mean = _view(mean, group.queries, group)
            weight = weights[group.scores].view(group.shape)
            own_mask = None if mask is None else mask[group.scores].view(group.shape)
            # Scaled in the product, then masked: dropped weights get no gradient.
            grad_weight = product(own_mean, _view(v, group.keys, group).mT, ctx.dropout_scale)
            # A private function of torch, in one pass: 3 to 4 times as fast as separate operators, 13 µs
            # instead of 51 for 12 heads of 80 tokens in float32, 23 instead of 101 in bfloat16.
            grad = torch._softmax_backward_data(apply_mask(grad_weight, own_mask), weight, -1, weight.dtype)
            product(grad, _view(k, group.keys, group), ctx.scale, _view(grad_q, group.queries, group))
            product(grad.mT, _view(q, group.queries, group), ctx.scale, _view(grad_k, group.keys, group))
            kept = apply_mask(weight, own_mask)
            product(kept.mT, own_mean, ctx.dropout_scale, _view(grad_v, group.keys, group))
        query_shape, key_shape = ctx.shapes
        return (
            _put(grad_q, layout.query_places, query_shape),
            _put_keys(grad_k, layout, key_shape),
            _put_keys(grad_v, layout, key_shape),
            None,
            None,
        )


def _view(rows: Tensor, span: slice, group: Group) -> Tensor:
    """Return the rows of a group as [products, rows of each, head_dim]."""
    return rows[span].view(group.shape[0], -1, rows.shape[-1])


def _gathered(packed: Tensor, rows: Tensor) -> Tensor:
    """Gather rows of [tokens, heads, head_dim] into [rows, head_dim]."""
    return packed.reshape(-1, packed.shape[-1]).index_select(0, rows)


def _put(rows: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """Gather the rows of all tokens and heads into [tokens, heads, head_dim]; spare tokens are zero."""
    packed = rows.new_empty(shape)
    flat = packed.view(-1, shape[-1])
    torch.index_select(rows, 0, places, out=flat[: len(places)])
    flat[len(places) :] = 0
    return packed


def _put_keys(rows: Tensor, layout: Layout, shape: torch.Size) -> Tensor:
    """Put gradients of keys, as `_put` does; those of keys of several groups are added."""
    if layout.key_places is not None:
        return _put(rows, layout.key_places, shape)
    # The gradients of padding are zero.
    return rows.new_zeros(shape).view(-1, shape[-1]).index_add_(0, layout.key_rows, rows).view(shape)


def product(one: Tensor, other: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Compute scale · one · other, batched over the first dimension."""
    if out is None:
        out = one.new_empty(one.shape[0], one.shape[1], other.shape[2])
    return torch.baddbmm(out, one, other, beta=0, alpha=scale, out=out)
