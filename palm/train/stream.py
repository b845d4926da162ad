"""The endless batches of one task; their rows and order are functions of position."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from palm.core.errors import TrainingError
from palm.core.layers import generator
from palm.core.saved import Tensors
from palm.reader.base import Reader
from palm.reader.rows import Ints, Rows

WINDOW = 50
"""Number of batches whose rows are sorted by length together, so batches still have random rows."""

Order = Callable[[int], npt.NDArray[np.int64]]
"""Epoch -> its rows, in order."""


@dataclass(eq=False, repr=False)
class TaskStream:
    """The endless batches of one task, each a function of its number.

    Epochs follow one another without a gap: an incomplete last batch is filled up from the next epoch, so
    every row is seen once per epoch and every batch is full. Only the last epoch of a run may be cut short.

    Args:
        task: the task's name; with `seed` it determines the order of rows and their masks.
        reader: makes batches of rows.
        rows: the encoded training data.
        seed: the run's `random_seed`.
        batch_size: rows per batch; ignored if `max_tokens_per_batch` is given.
        max_tokens_per_batch: a batch has as many of the next rows as fit into this number of tokens.
        shuffle: draw a new order for every epoch; otherwise the order of the file.
        rank: this process's batch among every `world_size` consecutive ones.
        world_size: number of processes that train, each on its own batch.

    Attributes:
        steps_per_epoch: number of full batches per process in the first pass over the rows, as PALM counts.

    Raises:
        TrainingError: too few rows for one batch, or a row with too many tokens.
    """

    task: str
    reader: Reader
    rows: Rows
    _: KW_ONLY
    seed: int
    batch_size: int | None = None
    max_tokens_per_batch: int | None = None
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        self._grouped_rows = 0
        self._order = lru_cache(maxsize=2)(self._new_order)  # a batch may reach into the next epoch
        if self.max_tokens_per_batch is None:
            assert self.batch_size is not None, "neither batch_size nor max_tokens_per_batch"
            self._batches: RowBatches | TokenBatches = self._of_rows(self.batch_size)
        else:
            self._batches = self._of_tokens(self.max_tokens_per_batch)
        self.steps_per_epoch = self._batches.steps_per_epoch // self.world_size
        if self.steps_per_epoch == 0:
            raise TrainingError(
                f"task {self.task!r}: {len(self.rows)} training rows do not fill one batch on each of "
                f"{self.world_size} devices; lower batch_size or max_tokens_per_batch, use fewer devices, or "
                "add data"
            )

    def group_by_length(self) -> None:
        """Group rows of similar length into batches, in random order; for encoders that compute padding.

        Nothing changes if batches are limited by tokens or rows are not shuffled.
        """
        if self.shuffle and isinstance(self._batches, RowBatches):
            self._grouped_rows = self._batches.batch_size
            self._order.cache_clear()

    def _of_rows(self, batch_size: int) -> RowBatches:
        num_rows = len(self.rows)
        if num_rows < batch_size:
            raise TrainingError(
                f"task {self.task!r}: {num_rows} training rows do not fill one batch; "
                f"set batch_size (now {batch_size}) to {num_rows} or less, or add data"
            )
        return RowBatches(num_rows, batch_size)

    def _of_tokens(self, max_tokens: int) -> TokenBatches:
        row_tokens = self.reader.row_tokens(self.rows)
        longest = int(np.argmax(row_tokens))
        total = int(row_tokens.sum())
        if row_tokens[longest] > max_tokens:
            raise TrainingError(
                f"task {self.task!r}: training row {longest + 1} has {row_tokens[longest]} tokens; "
                f"increase max_tokens_per_batch (now {max_tokens}) at least to that, or lower max_seq_len"
            )
        if total < max_tokens:
            raise TrainingError(
                f"task {self.task!r}: training rows of {total} tokens do not fill one batch; "
                f"set max_tokens_per_batch (now {max_tokens}) to {total} or less, or add data"
            )
        return TokenBatches(row_tokens, max_tokens, self._order)

    def in_order_of(self, other: TaskStream) -> TaskStream:
        """Return these rows, with their labels, in the batches and the order of another stream."""
        # A shallow copy: both streams share the partition into batches and the cache of orders.
        stream = copy.copy(other)
        stream.task = self.task
        stream.reader = self.reader
        stream.rows = self.rows
        return stream

    def rows_before(self, step: int) -> int:
        """Count the rows of all processes' batches before `step`, including repeats."""
        # Consecutive batches go to ranks 0, 1, 2 …, so a step ends with the batch of the last rank.
        return self._batches.places(step * self.world_size - 1).stop if step else 0

    def picks(self, step: int) -> list[tuple[int, int]]:
        """Return (epoch, row) of every row of this process's batch at `step`, counted from 0."""
        # A function of the step without state, so a run can resume anywhere.
        places = (
            divmod(place, len(self.rows))
            for place in self._batches.places(step * self.world_size + self.rank)
        )
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def batch(self, step: int, at_most: int | None = None) -> Tensors:
        """Return this process's batch at `step`, counted from 0, on the CPU, with `at_most` rows."""
        picks = self.picks(step)[:at_most]

        # Seeded by epoch and row, so a row's mask does not depend on batch size or number of devices.
        def draw(k: int) -> np.random.Generator:
            return generator(self.seed, "mask", self.task, *picks[k])

        return self.reader.collate(self.rows, [row for _, row in picks], draw)

    def _new_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(len(self.rows))
        rng = generator(self.seed, "shuffle", self.task, epoch)
        order = rng.permutation(len(self.rows))
        return self._grouped(order, epoch, rng) if self._grouped_rows else order

    def _grouped(
        self, order: npt.NDArray[np.int64], epoch: int, rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        size = self._grouped_rows
        tokens = self.reader.row_tokens(self.rows)
        first = -epoch * len(order) % size  # earlier rows fill the last batch of the previous epoch
        parts = [order[:first]]
        for start in range(first, len(order), WINDOW * size):
            window = order[start : start + WINDOW * size]
            # Stable, so rows of equal length keep their drawn order with every version of numpy.
            window = window[np.argsort(tokens[window], kind="stable")]
            whole = len(window) // size
            # Full batches are shuffled; otherwise every window would train from its shortest to its longest
            # rows.
            parts += [window[k * size : (k + 1) * size] for k in rng.permutation(whole)]
            parts.append(window[whole * size :])
        return np.concatenate(parts)


class RowBatches:
    """A partition of the chain of epochs into batches with the same number of rows.

    Place p of the chain is row `p % rows` of the order of epoch `p // rows`. A batch begins where the
    previous one ends.

    Args:
        num_rows: rows per epoch.
        batch_size: rows per batch.

    Attributes:
        batch_size: rows per batch.
        steps_per_epoch: number of batches that end within the first epoch; `num_epochs` is multiplied by it.
    """

    def __init__(self, num_rows: int, batch_size: int) -> None:
        self.steps_per_epoch = num_rows // batch_size
        self.batch_size = batch_size

    def places(self, number: int) -> range:
        """Return the places of batch `number`."""
        return range(number * self.batch_size, (number + 1) * self.batch_size)


class TokenBatches:
    """Batches of as many rows as fit into `max_tokens`, in the order of the chain.

    The start of a batch depends on all rows before it, so epochs are partitioned in order, on demand: a run
    that resumes in its tenth epoch first partitions ten epochs.

    Args:
        row_tokens: number of tokens of every row, none above `max_tokens`, with a sum of at least that.
        max_tokens: maximum number of tokens in a batch.
        order: epoch -> its rows, in order.
    """

    def __init__(self, row_tokens: Ints, max_tokens: int, order: Order) -> None:
        self._row_tokens = row_tokens
        self._max_tokens = max_tokens
        self._order = order
        self._first_numbers = [0]
        self._first_places = [0]  # epoch -> place of the first batch that begins in it
        self._sums = lru_cache(maxsize=2)(self._new_sums)
        self._bounds = lru_cache(maxsize=2)(self._partition)
        bounds = self._bounds(0)
        # A last batch that needs rows of the second epoch does not count.
        self.steps_per_epoch = len(bounds) - 1 - (bounds[-1] > len(row_tokens))

    def places(self, number: int) -> range:
        """Return the places of batch `number`."""
        # The start of an epoch's first batch depends on the partition of the previous epoch.
        while self._first_numbers[-1] <= number:
            bounds = self._bounds(len(self._first_numbers) - 1)
            self._first_numbers.append(self._first_numbers[-1] + len(bounds) - 1)
            self._first_places.append(bounds[-1])
        epoch = bisect_right(self._first_numbers, number) - 1
        bounds = self._bounds(epoch)
        k = number - self._first_numbers[epoch]
        return range(bounds[k], bounds[k + 1])

    def _partition(self, epoch: int) -> list[int]:
        """Find the places where the batches of an epoch begin, and where the first one of the next begins."""
        sums = self._sums(epoch)
        before = epoch * len(self._row_tokens)
        place = self._first_places[epoch] - before
        bounds = [place]
        while sums[-1] - sums[place] > self._max_tokens:
            place = _last_within(sums, sums[place] + self._max_tokens)
            bounds.append(place)
        # The last batch is filled up with the first rows of the next epoch.
        left = self._max_tokens - (sums[-1] - sums[place])
        bounds.append(len(self._row_tokens) + _last_within(self._sums(epoch + 1), left))
        return [before + place for place in bounds]

    def _new_sums(self, epoch: int) -> npt.NDArray[np.int64]:
        """Count the tokens before each place of an epoch and before its end, int64[rows + 1]."""
        return np.concatenate([[0], np.cumsum(self._row_tokens[self._order(epoch)], dtype=np.int64)])


def _last_within(sums: npt.NDArray[np.int64], limit: int) -> int:
    """Return the last place with at most `limit` tokens before it."""
    return int(np.searchsorted(sums, limit, side="right")) - 1
