"""Which places of the endless chain of epochs make up a batch: so many rows, or rows of so many tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from palm.reader.rows import Ints

Order = Callable[[int], npt.NDArray[np.int64]]
"""Epoch -> its rows, in its order."""


class Batches(Protocol):
    """A cut of the chain of epochs into batches.

    Place p of the chain is row `p % rows` of the order of epoch `p // rows`.

    Attributes:
        steps_per_epoch: how many batches end within the first epoch; `num_epochs` is multiplied by it.
    """

    steps_per_epoch: int

    def places(self, number: int) -> range:
        """The places of batch `number`, counted from 0; it begins where the one before it ends."""


class RowBatches:
    """Batches of equally many rows.

    Args:
        num_rows: rows of an epoch.
        batch_size: rows of a batch.
    """

    def __init__(self, num_rows: int, batch_size: int) -> None:
        self.steps_per_epoch = num_rows // batch_size
        self._batch_size = batch_size

    def places(self, number: int) -> range:
        """The places of batch `number`."""
        return range(number * self._batch_size, (number + 1) * self._batch_size)


class TokenBatches:
    """Batches of as many rows as have at most `max_tokens` together, in the order of the chain.

    Where a batch begins depends on all rows before it, so epochs are cut one after another, each when
    it is needed: the first batch of a run that goes on in its tenth epoch waits for ten cuts.

    Args:
        row_tokens: the tokens of every row, none above `max_tokens`; together they are no fewer.
        max_tokens: the most tokens of a batch.
        order: the rows of an epoch.
    """

    def __init__(self, row_tokens: Ints, max_tokens: int, order: Order) -> None:
        self._row_tokens, self._max_tokens, self._order = row_tokens, max_tokens, order
        self._first_numbers, self._first_places = [0], [0]  # of the batches that begin in an epoch, by epoch
        self._sums = lru_cache(maxsize=2)(self._new_sums)
        self._bounds = lru_cache(maxsize=2)(self._cut)
        bounds = self._bounds(0)
        self.steps_per_epoch = len(bounds) - 1 - (bounds[-1] > len(row_tokens))

    def places(self, number: int) -> range:
        """The places of batch `number`."""
        while self._first_numbers[-1] <= number:
            self._enter_next_epoch()
        epoch = bisect_right(self._first_numbers, number) - 1
        bounds = self._bounds(epoch)
        k = number - self._first_numbers[epoch]
        return range(bounds[k], bounds[k + 1])

    def _enter_next_epoch(self) -> None:
        bounds = self._bounds(len(self._first_numbers) - 1)
        self._first_numbers.append(self._first_numbers[-1] + len(bounds) - 1)
        self._first_places.append(bounds[-1])

    def _cut(self, epoch: int) -> list[int]:
        """Where the batches begin that begin in an epoch, and then the first of the next, in the chain."""
        sums, before = self._sums(epoch), epoch * len(self._row_tokens)
        place = self._first_places[epoch] - before
        bounds = [place]
        while sums[-1] - sums[place] > self._max_tokens:
            place = _last_within(sums, sums[place] + self._max_tokens)
            bounds.append(place)
        left = self._max_tokens - (sums[-1] - sums[place])
        bounds.append(len(self._row_tokens) + _last_within(self._sums(epoch + 1), left))
        return [before + place for place in bounds]

    def _new_sums(self, epoch: int) -> npt.NDArray[np.int64]:
        """How many tokens stand before each place of an epoch, and before its end, int64[rows + 1]."""
        return np.concatenate([[0], np.cumsum(self._row_tokens[self._order(epoch)], dtype=np.int64)])


def _last_within(sums: npt.NDArray[np.int64], limit: int) -> int:
    """The last place with no more than `limit` tokens before it."""
    return int(np.searchsorted(sums, limit, side="right")) - 1
