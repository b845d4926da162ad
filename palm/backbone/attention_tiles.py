"""Attention tiles on a CPU: blocks of packed queries, each with the keys that any of them sees."""

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
"""Rows of scores are padded to a multiple of this if possible, because half-filled vectors are slow: in
bfloat16 with 12 heads, it saves a third of the time at 50 tokens, 15 % at 80, and costs 10 % at 65 and 97."""

MERGE_LIMIT = 32
"""Neighbouring sequences with at most this many tokens in total form one block: one product costs less than
many small ones, although scores between different sequences are computed and discarded. For rows of 14 tokens
in stacked blocks, a layer's attention takes 2.6 ms with 32, and 3.8 with 64."""


class Block(NamedTuple):
    """A slice of the queries and the keys with which one product compares them.

    Args:
        queries: slice of the queries.
        keys: slice of the keys and values.
        end: end of the keys, padded to a multiple of `MULTIPLE`.
        masked: True where a query may not see a key before `end`, because it belongs to another sequence or
            is outside the window. None if this concerns only the keys after `keys`.
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
        """Rows and columns of a head's scores."""
        return self.queries.stop - self.queries.start, self.end - self.keys.start

    def queries_by_head(self, packed: Tensor) -> Tensor:
        """Copy the queries from [tokens, heads, head_dim] to contiguous [heads, queries, head_dim]."""
        return packed[self.queries].transpose(0, 1).contiguous()

    def gradient_by_head(self, packed: Tensor) -> Tensor:
        """Copy a gradient of the queries by head."""
        return self.queries_by_head(packed)

    def keys_by_head(self, packed: Tensor) -> Tensor:
        """Copy the keys by head, padded up to `end` with the tokens that follow."""
        return packed[self.keys.start : self.end].transpose(0, 1).contiguous()

    def hide(self, scores: Tensor) -> None:
        """Set the scores, [heads, queries, keys], of masked keys to minus infinity."""
        if self.masked is None:
            scores[..., self.length :] = -math.inf
        else:
            scores.masked_fill_(self.masked, -math.inf)

    def put_queries(self, packed: Tensor, by_head: Tensor) -> None:
        """Write a result per query to its position in [tokens, heads, head_dim]."""
        packed[self.queries] = by_head.transpose(0, 1)

    def put_keys(self, packed: Tensor, by_head: Tensor, overlapping: bool) -> None:
        """Write a result per key to its position, without the padding; keys of several blocks get the sum."""
        values = by_head[:, : self.length].transpose(0, 1)
        # Only the blocks of a window share keys; otherwise nothing has to be read and added.
        packed[self.keys] = packed[self.keys] + values if overlapping else values

    @property
    def blocks(self) -> Sequence[Block]:
        """The block itself, as the only one."""
        return [self]

    def mask_of(self, drawn: Sequence[Tensor], num_heads: int) -> Tensor:
        """Reshape the drawn dropout mask to [heads, queries, keys]."""
        (flat,) = drawn
        return flat.view(num_heads, *self.size)


@functools.lru_cache(maxsize=8)
def blocks_of(scope: Scope) -> list[Block]:
    """Divide the sequences into blocks; cached, because all layers of a batch need the same ones."""
    window = scope.window
    tokens = scope.keys.bounds[-1][1]
    query_row, query_column = _rows_and_columns(scope.queries)
    key_row, key_column = _rows_and_columns(scope.keys)
    blocks = []
    for q, k, is_one in _divided(scope):
        # Padded only if enough tokens follow in the batch.
        end = k.start + math.ceil((k.stop - k.start) / MULTIPLE) * MULTIPLE
        end = end if end <= tokens else k.stop
        masked = None
        if not is_one or window is not None:
            # No row has number -1, so no query sees the padding.
            masked = query_row[q, None] != F.pad(key_row[k], (0, end - k.stop), value=-1)
        if masked is not None and window is not None:
            distance = query_column[q, None] - F.pad(key_column[k], (0, end - k.stop))
            masked |= distance.abs() > window
        blocks.append(Block(q, k, end, masked))
    return blocks


def _divided(scope: Scope) -> Iterator[tuple[slice, slice, bool]]:
    """Yield the queries of each block, the keys that they see, and True if all belong to one sequence."""
    bounds = scope.keys.bounds
    window = scope.window
    first = 0
    for number in range(1, len(bounds) + 1):
        if number < len(bounds) and bounds[number][1] - bounds[first][0] <= MERGE_LIMIT:
            continue  # the next sequence still fits into the block
        queries = slice(scope.queries.bounds[first][0], scope.queries.bounds[number - 1][1])
        keys = slice(bounds[first][0], bounds[number - 1][1])
        is_one = first == number - 1
        first = number
        if window is None or not is_one:
            yield queries, keys, is_one
            continue
        # With a window, a sequence is split into chunks that see only nearby keys.
        # With chunks of twice the window, about half of the computed scores are of visible keys.
        chunk = 2 * max(window, MERGE_LIMIT)
        shift = keys.start - queries.start
        for start in range(queries.start, queries.stop, chunk):
            stop = min(start + chunk, queries.stop)
            near = slice(max(start + shift - window, keys.start), min(stop + shift + window, keys.stop))
            yield slice(start, stop), near, True


def _rows_and_columns(rows: Sequences) -> tuple[Tensor, Tensor]:
    """Return the sequence number of every token and its position in the sequence."""
    starts, stops = torch.tensor(rows.bounds).unbind(1)
    row = torch.arange(len(starts)).repeat_interleave(stops - starts)
    return row, torch.arange(len(row)) - starts[row]
