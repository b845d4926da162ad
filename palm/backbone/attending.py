"""softmax(query · key / sqrt(head_dim)) · value within each of several packed sequences, on CPU and GPU.

On a CPU the sequences are taken one by one: nothing is spent on padding, and what one of them needs stays
in the processor's cache. With gradients, plain matrix products do it, because the backward of torch's
fused kernel is several times slower there, and short neighbours are taken together; without, it is the
fused kernel, and neighbours of one length go together, which changes no bit of what it computes. On a GPU
one kernel takes all sequences at once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from palm.backbone.dropout import kept, masked, scale_of
from palm.backbone.packing import Sequences

LINE = 32
"""Rows of scores are whole multiples of this, where they can be: half-filled vectors are slow."""

TOGETHER = 64
"""Neighbouring sequences of so many tokens in all are one piece of work: one product costs less than many
small ones, though it computes scores between strangers that are thrown away."""


Bounds = Sequence[tuple[int, int]]
"""Beginning and end of consecutive sequences."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, asking: Sequences, asked: Sequences, dropout_prob: float
) -> Tensor:
    """What every query gathers from the keys of its sequence.

    Args:
        query: [queries, heads, head_dim].
        key: [tokens, heads, head_dim].
        value: [tokens, heads, head_dim].
        asking: the sequences of `query`; spare queries may follow them, and gather zeros.
        asked: as many sequences, of `key` and `value`.
        dropout_prob: probability of zeroing an attention weight.

    Returns:
        [queries, heads, head_dim].
    """
    if query.is_cuda:
        return attend_at_once(query, key, value, asking, asked, dropout_prob)
    if dropout_prob or torch.is_grad_enabled():
        return attend_by_pieces(query, key, value, asking, asked, dropout_prob)
    return attend_without_gradients(query, key, value, asking, asked)


def attend_padded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """`attend` in rows of one length, looking only where `mask` is True; without dropout.

    Args:
        query: [batch * queries, heads, head_dim].
        key: [batch * seq, heads, head_dim].
        value: [batch * seq, heads, head_dim].
        mask: bool[batch, seq], at least one True per row.

    Returns:
        [batch * queries, heads, head_dim].
    """
    rows = (part.view(mask.shape[0], -1, *part.shape[1:]) for part in (query, key, value))
    q, k, v = (part.transpose(1, 2) for part in rows)  # [batch, heads, queries or seq, head_dim]
    return F.scaled_dot_product_attention(q, k, v, mask[:, None, None, :]).transpose(1, 2).flatten(0, 1)


def attend_at_once(
    query: Tensor, key: Tensor, value: Tensor, asking: Sequences, asked: Sequences, dropout_prob: float
) -> Tensor:
    """`attend` with one kernel for all sequences.

    `varlen_attn` knows neither dropout nor float32; where these are wanted, nested tensors lead to
    kernels that do.
    """
    varlen_attn = varlen_kernel()
    if varlen_attn is not None and not dropout_prob and query.dtype in (torch.bfloat16, torch.float16):
        gathered: Tensor = varlen_attn(
            query, key, value, asking.offsets, asked.offsets, asking.longest, asked.longest
        )
        return gathered
    q, k, v = _nested(query, asking), _nested(key, asked), _nested(value, asked)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_prob).transpose(1, 2).values()


@functools.cache
def varlen_kernel() -> Callable[..., Any] | None:
    """torch's kernel for packed sequences; None before torch 2.10. Importing it takes a second."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def _nested(packed: Tensor, sequences: Sequences) -> Tensor:
    """[sequences, heads, tokens of each, head_dim]."""
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        packed, sequences.offsets, min_seqlen=1, max_seqlen=sequences.longest
    )
    return made.transpose(1, 2)


def attend_without_gradients(
    query: Tensor, key: Tensor, value: Tensor, asking: Sequences, asked: Sequences
) -> Tensor:
    """`attend` with torch's fused kernel, neighbours of one length at a time, without dropout."""
    gathered = _empty_like(query, asking.bounds[-1][1])
    for count, queries, keys in _of_one_length(asking.bounds, asked.bounds):
        parts = (query[queries], key[keys], value[keys])
        q, k, v = (part.view(count, -1, *part.shape[1:]).transpose(1, 2) for part in parts)
        gathered[queries] = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)
    return gathered


def _of_one_length(asking: Bounds, asked: Bounds) -> Iterator[tuple[int, slice, slice]]:
    """How many neighbours have as many queries and as many keys, and where these lie."""
    pairs = zip(asking, asked, strict=True)
    for _, run in itertools.groupby(pairs, lambda pair: [stop - start for start, stop in pair]):
        same = list(run)
        (first_queries, first_keys), (last_queries, last_keys) = same[0], same[-1]
        yield len(same), slice(first_queries[0], last_queries[1]), slice(first_keys[0], last_keys[1])


def attend_by_pieces(
    query: Tensor, key: Tensor, value: Tensor, asking: Sequences, asked: Sequences, dropout_prob: float
) -> Tensor:
    """`attend` with plain matrix products, piece by piece."""
    pieces = pieces_of(asking, asked, len(key))
    gathered: Tensor = _Attention.apply(query, key, value, pieces, dropout_prob)  # type: ignore[no-untyped-call]
    return gathered


class _Piece(NamedTuple):
    """Where one sequence, or a few short neighbours, lie.

    Args:
        queries: among the queries.
        keys: among the keys and values.
        end: where the keys would end if they were whole lines.
        strangers: True where query and key, up to `end`, are of different sequences; None for a single
            sequence, to which only the keys after `keys` are strange.
    """

    queries: slice
    keys: slice
    end: int
    strangers: Tensor | None

    @property
    def lines(self) -> slice:
        """The keys and, to fill up their last line, some of the next piece."""
        return slice(self.keys.start, self.end)

    @property
    def length(self) -> int:
        """Number of keys."""
        return int(self.keys.stop - self.keys.start)


@functools.lru_cache(maxsize=4)
def pieces_of(asking: Sequences, asked: Sequences, tokens: int) -> list[_Piece]:
    """How the sequences of `asking` and `asked` are divided into pieces, the same for all layers.

    Args:
        asking: sequences of queries.
        asked: as many, of keys.
        tokens: number of keys, with spare ones that follow the last sequence.
    """
    pieces = []
    for first, last in _neighbours(asked.bounds):
        (start, _), (_, stop) = asked.bounds[first], asked.bounds[last]
        queries = slice(asking.bounds[first][0], asking.bounds[last][1])
        end = _end_of_lines(start, stop, tokens)
        strangers = None
        if last > first:
            owners = [_owners(each.bounds[first : last + 1]) for each in (asking, asked)]
            strangers = owners[0][:, None] != F.pad(owners[1], (0, end - stop), value=-1)
        pieces.append(_Piece(queries, slice(start, stop), end, strangers))
    return pieces


def _neighbours(bounds: Bounds) -> Iterator[tuple[int, int]]:
    """The first and the last sequence of each piece."""
    first = 0
    for number in range(1, len(bounds) + 1):
        if number == len(bounds) or bounds[number][1] - bounds[first][0] > TOGETHER:
            yield first, number - 1
            first = number


def _owners(bounds: Bounds) -> Tensor:
    """For every token of consecutive sequences, the number of its own."""
    lengths = torch.tensor([stop - start for start, stop in bounds])
    return torch.arange(len(bounds)).repeat_interleave(lengths)


def _end_of_lines(start: int, stop: int, tokens: int) -> int:
    end = start + math.ceil((stop - start) / LINE) * LINE
    return end if end <= tokens else stop


class _Attention(torch.autograd.Function):
    """Scores, softmax, dropout and weighted mean, with their derivatives written out."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: list[_Piece], dropout_prob: float
    ) -> Tensor:
        ctx.pieces, ctx.scale = pieces, 1 / math.sqrt(query.shape[-1])
        ctx.dropout_scale = scale_of(dropout_prob) if dropout_prob else 1.0
        masks = _masks(pieces, query, dropout_prob) if dropout_prob else [None] * len(pieces)
        gathered, weights = _empty_like(query, pieces[-1].queries.stop), []
        for piece, mask in zip(pieces, masks, strict=True):
            scores = _product(_heads(query[piece.queries]), _heads(key[piece.lines]).mT, ctx.scale)
            if piece.strangers is None:
                scores[..., piece.length :] = -math.inf
            else:
                scores.masked_fill_(piece.strangers, -math.inf)
            weight = scores.softmax(-1)
            mean = _product(masked(weight, mask), _heads(value[piece.lines]), ctx.dropout_scale)
            gathered[piece.queries] = mean.transpose(0, 1)
            weights.append(weight)
        ctx.save_for_backward(query, key, value, *weights, *masks)
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        count = len(ctx.pieces)
        grad_query = _empty_like(query, ctx.pieces[-1].queries.stop)
        grad_key, grad_value = (_empty_like(part, ctx.pieces[-1].keys.stop) for part in (key, value))
        for piece, weight, mask in zip(ctx.pieces, saved[:count], saved[count:], strict=True):
            mean = _heads(gradient[piece.queries])
            grad_weight = _product(mean, _heads(value[piece.lines]).mT, ctx.dropout_scale)
            grad_scores = torch._softmax_backward_data(masked(grad_weight, mask), weight, -1, weight.dtype)
            of_queries = _product(grad_scores, _heads(key[piece.lines]), ctx.scale)
            of_keys = _product(grad_scores.mT, _heads(query[piece.queries]), ctx.scale)
            of_values = _product(masked(weight, mask).mT, mean, ctx.dropout_scale)
            grad_query[piece.queries] = of_queries.transpose(0, 1)
            grad_key[piece.keys] = of_keys[:, : piece.length].transpose(0, 1)
            grad_value[piece.keys] = of_values[:, : piece.length].transpose(0, 1)
        return grad_query, grad_key, grad_value, None, None


def _masks(pieces: list[_Piece], query: Tensor, dropout_prob: float) -> Sequence[Tensor]:
    """Which attention weights stay, for every piece in the shape of its scores."""
    heads = query.shape[1]
    shapes = [(heads, p.queries.stop - p.queries.start, p.end - p.keys.start) for p in pieces]
    sizes = [math.prod(shape) for shape in shapes]
    drawn = torch.split(kept(torch.Size([sum(sizes)]), dropout_prob, query.dtype), sizes)
    return [mask.view(shape) for mask, shape in zip(drawn, shapes, strict=True)]


def _empty_like(packed: Tensor, used: int) -> Tensor:
    """A tensor to be filled up to `used`; what comes after it is zero."""
    empty = torch.empty_like(packed)
    empty[used:] = 0
    return empty


def _heads(packed: Tensor) -> Tensor:
    """[tokens, heads, head_dim] as [heads, tokens, head_dim], also in memory."""
    return packed.transpose(0, 1).contiguous()


def _product(one: Tensor, other: Tensor, scale: float) -> Tensor:
    """scale · one · other, head by head."""
    out = one.new_empty(one.shape[0], one.shape[1], other.shape[2])
    return torch.baddbmm(out, one, other, beta=0, alpha=scale, out=out)
