"""Attention tiles on a CPU: blocks of packed queries, each compared with the keys that some of them see."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.backbone.packing import Scope, Sequences

MULTIPLE = 32
"""Rows of scores are whole multiples of this, where they can be, because half-filled vectors are slow: in
bfloat16 with 12 heads it saves a third of the time at 50 tokens, 15 % at 80, and costs 10 % at 65 and 97."""

TOGETHER = 32
"""Neighbouring sequences of so many tokens in all are one block: one product costs less than many small ones,
though it computes scores between different sequences that are thrown away. For rows of 14 tokens, a layer's
attention takes 2.6 ms with 32, 3.8 with 64, where the blocks are stacked."""


class Block(NamedTuple):
    """A slice of the queries, and the keys that one product compares them with.

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
    def length(self) -> int:
        """Number of keys."""
        return int(self.keys.stop - self.keys.start)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the scores of a head."""
        return self.queries.stop - self.queries.start, self.end - self.keys.start

    def queries_by_head(self, packed: Tensor) -> Tensor:
        """[tokens, heads, head_dim] as [heads, queries, head_dim], also in memory."""
        return packed[self.queries].transpose(0, 1).contiguous()

    def gradient_by_head(self, packed: Tensor) -> Tensor:
        """`queries_by_head` of a gradient."""
        return self.queries_by_head(packed)

    def keys_by_head(self, packed: Tensor) -> Tensor:
        """The same of the keys, filled up to the multiple with tokens that follow."""
        return packed[self.keys.start : self.end].transpose(0, 1).contiguous()

    def hide(self, scores: Tensor) -> None:
        """Set the scores, [heads, queries, keys], of keys that a query may not see to minus infinity."""
        if self.masked is None:
            scores[..., self.length :] = -math.inf
        else:
            scores.masked_fill_(self.masked, -math.inf)

    def put_queries(self, packed: Tensor, by_head: Tensor) -> None:
        """Write a result of every query to its place in [tokens, heads, head_dim]."""
        packed[self.queries] = by_head.transpose(0, 1)

    def put_keys(self, packed: Tensor, by_head: Tensor, overlapping: bool) -> None:
        """The same of every key, without the filling; keys of several blocks get the sum."""
        values = by_head[:, : self.length].transpose(0, 1)
        # Only blocks of a window have keys in common; without one, nothing has to be read and added.
        packed[self.keys] = packed[self.keys] + values if overlapping else values

    @property
    def blocks(self) -> Sequence[Block]:
        """Itself alone."""
        return [self]

    def mask_of(self, drawn: Sequence[Tensor], num_heads: int) -> Tensor:
        """The drawn dropout mask, [heads, queries, keys]."""
        (flat,) = drawn
        return flat.view(num_heads, *self.size)


@functools.lru_cache(maxsize=8)
def blocks_of(scope: Scope) -> list[Block]:
    """Divide the sequences into blocks; cached, since all layers of one batch ask for the same."""
    window = scope.window
    tokens = scope.keys.bounds[-1][1]
    query_row, query_place = _places(scope.queries)
    key_row, key_place = _places(scope.keys)
    blocks = []
    for q, k, is_one in _divided(scope):
        # Only where as many tokens follow in the batch: keys beyond its end cannot be read.
        end = k.start + math.ceil((k.stop - k.start) / MULTIPLE) * MULTIPLE
        end = end if end <= tokens else k.stop
        masked = None
        if not is_one or window is not None:
            # -1 is the number of no row, so that keys which only fill up are seen by no query.
            masked = query_row[q, None] != F.pad(key_row[k], (0, end - k.stop), value=-1)
        if masked is not None and window is not None:
            distance = query_place[q, None] - F.pad(key_place[k], (0, end - k.stop))
            masked |= distance.abs() > window
        blocks.append(Block(q, k, end, masked))
    return blocks


def _divided(scope: Scope) -> Iterator[tuple[slice, slice, bool]]:
    """Yield the queries of a block, the keys that some of them see, and True if all are of one sequence."""
    bounds = scope.keys.bounds
    window = scope.window
    first = 0
    for number in range(1, len(bounds) + 1):
        if number < len(bounds) and bounds[number][1] - bounds[first][0] <= TOGETHER:
            continue  # one more neighbour fits in
        queries = slice(scope.queries.bounds[first][0], scope.queries.bounds[number - 1][1])
        keys = slice(bounds[first][0], bounds[number - 1][1])
        is_one = first == number - 1
        first = number
        if window is None or not is_one:
            yield queries, keys, is_one
            continue
        # A window sees what is near, so that a sequence is cut into stretches.
        # With twice the window, about half of the scores that are computed are of keys that are seen.
        stretch = 2 * max(window, TOGETHER)
        shift = keys.start - queries.start
        for start in range(queries.start, queries.stop, stretch):
            stop = min(start + stretch, queries.stop)
            near = slice(max(start + shift - window, keys.start), min(stop + shift + window, keys.stop))
            yield slice(start, stop), near, True


def _places(rows: Sequences) -> tuple[Tensor, Tensor]:
    """The number of every token's sequence, and the token's place in it."""
    starts, stops = torch.tensor(rows.bounds).unbind(1)
    row = torch.arange(len(starts)).repeat_interleave(stops - starts)
    return row, torch.arange(len(row)) - starts[row]
