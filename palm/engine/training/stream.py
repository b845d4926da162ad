"""The endless batches of one task: which rows each has, and in which order, as functions of position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from palm.core.errors import TrainingError
from palm.core.numerics.rng import generator
from palm.core.tensor_specs import Tensors
from palm.reader.base import Reader
from palm.reader.rows.rows import Ints, Rows

WINDOW = 50
"""Batches whose rows are sorted together; which rows meet in one stays a matter of chance."""

Order = Callable[[int], npt.NDArray[np.int64]]
"""Epoch -> its rows, in its order."""


@dataclass(eq=False, repr=False)
class TaskStream:
    """The endless batches of one task, each a function of its number.

    Epochs follow one another without a seam: the short rest of one is filled up from the next, so
    every row is seen once an epoch and every batch is full. Only the last epoch of a run may be cut short.

    Args:
        task: the task's name; with `seed` it decides the order of rows and what is masked.
        reader: makes batches of rows.
        rows: the encoded training data.
        seed: the run's `random_seed`.
        batch_size: rows per batch; not used where there is `max_tokens_per_batch`.
        max_tokens_per_batch: a batch has as many of the next rows as have no more tokens together.
        shuffle: draw a new order for every epoch; otherwise the order of the file.
        rank: which of every `num_ranks` consecutive batches is this process's.
        num_ranks: how many processes train, each on a batch of its own.
        copies: how often a batch has all of its rows, one after another.

    Attributes:
        steps_per_epoch: PALM's accounting: how often all processes get a full batch in one pass over the
            rows, the first.

    Raises:
        TrainingError: too few rows for one batch, or one row with too many tokens.
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
    num_ranks: int = 1
    copies: int = 1

    def __post_init__(self) -> None:
        self._grouped_rows = 0
        self._order = lru_cache(maxsize=2)(self._new_order)  # a batch may reach into the next epoch
        if self.max_tokens_per_batch is None:
            assert self.batch_size is not None, "neither batch_size nor max_tokens_per_batch"
            self._batches: RowBatches | TokenBatches = self._of_rows(self.batch_size)
        else:
            self._batches = self._of_tokens(self.max_tokens_per_batch)
        self.steps_per_epoch = self._batches.steps_per_epoch // self.num_ranks
        if self.steps_per_epoch == 0:
            raise TrainingError(
                f"task {self.task!r}: {len(self.rows)} training rows do not fill one batch on each of "
                f"{self.num_ranks} devices; lower batch_size or max_tokens_per_batch, take fewer devices, or "
                "add data"
            )

    def group_by_length(self) -> None:
        """Give every batch rows of about one length, in an epoch's order of batches; for padded encoders.

        Where batches are cut by tokens, or rows stay in the file's order, nothing changes.
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
        # With `r_drop` a batch has every row twice, so its tokens count twice.
        row_tokens = self.reader.row_tokens(self.rows) * self.copies
        longest = int(np.argmax(row_tokens))
        total = int(row_tokens.sum())
        if row_tokens[longest] > max_tokens:
            raise TrainingError(
                f"task {self.task!r}: training row {longest + 1} has {row_tokens[longest]} tokens; "
                f"set max_tokens_per_batch (now {max_tokens}) to as many or more, or lower max_seq_len"
            )
        if total < max_tokens:
            raise TrainingError(
                f"task {self.task!r}: training rows of {total} tokens do not fill one batch; "
                f"set max_tokens_per_batch (now {max_tokens}) to {total} or less, or add data"
            )
        return TokenBatches(row_tokens, max_tokens, self._order)

    def rows_before(self, step: int) -> int:
        """Count the rows of all processes' batches before `step`, those of every pass."""
        # Consecutive batches go to ranks 0, 1, 2 …, so a step ends with the batch of the last rank.
        return self._batches.places(step * self.num_ranks - 1).stop if step else 0

    def picks(self, step: int) -> list[tuple[int, int]]:
        """(epoch, row) of every row of this process's batch at `step`, counted from 0."""
        # A function of the step, with nothing counted from one to the next: a resumed run takes up the chain
        # anywhere, and reading ahead or twice changes nothing.
        places = (
            divmod(place, len(self.rows)) for place in self._batches.places(step * self.num_ranks + self.rank)
        )
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def batch(self, step: int, at_most: int | None = None) -> Tensors:
        """This process's batch at `step`, counted from 0, on the CPU; `at_most` so many of its rows."""
        picks = self.picks(step)[:at_most] * self.copies

        # By epoch and row, not by batch: a row is masked alike with any batch size, on any number of devices.
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
        first = -epoch * len(order) % size  # what is before it fills the last batch of the epoch before
        parts = [order[:first]]
        for start in range(first, len(order), WINDOW * size):
            window = order[start : start + WINDOW * size]
            # Stable: rows of one length stay as they were drawn, with every version of numpy.
            window = window[np.argsort(tokens[window], kind="stable")]
            whole = len(window) // size
            # Whole batches in an order of their own; otherwise every window would train from its shortest
            # rows to its longest.
            parts += [window[k * size : (k + 1) * size] for k in rng.permutation(whole)]
            parts.append(window[whole * size :])
        return np.concatenate(parts)


class RowBatches:
    """A cut of the chain of epochs into batches of equally many rows.

    Place p of the chain is row `p % rows` of the order of epoch `p // rows`. A batch begins where the one
    before it ends.

    Args:
        num_rows: rows of an epoch.
        batch_size: rows of a batch.

    Attributes:
        batch_size: rows of a batch.
        steps_per_epoch: how many batches end within the first epoch; `num_epochs` is multiplied by it.
    """

    def __init__(self, num_rows: int, batch_size: int) -> None:
        self.steps_per_epoch = num_rows // batch_size
        self.batch_size = batch_size

    def places(self, number: int) -> range:
        """The places of batch `number`."""
        return range(number * self.batch_size, (number + 1) * self.batch_size)


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
        self._row_tokens = row_tokens
        self._max_tokens = max_tokens
        self._order = order
        self._first_numbers = [0]
        self._first_places = [0]  # of the batches that begin in an epoch, by epoch
        self._sums = lru_cache(maxsize=2)(self._new_sums)
        self._bounds = lru_cache(maxsize=2)(self._cut)
        bounds = self._bounds(0)
        # A last batch that needed rows of the second epoch is not counted to the first.
        self.steps_per_epoch = len(bounds) - 1 - (bounds[-1] > len(row_tokens))

    def places(self, number: int) -> range:
        """The places of batch `number`."""
        # Where an epoch begins depends on how the one before it was cut.
        while self._first_numbers[-1] <= number:
            bounds = self._bounds(len(self._first_numbers) - 1)
            self._first_numbers.append(self._first_numbers[-1] + len(bounds) - 1)
            self._first_places.append(bounds[-1])
        epoch = bisect_right(self._first_numbers, number) - 1
        bounds = self._bounds(epoch)
        k = number - self._first_numbers[epoch]
        return range(bounds[k], bounds[k + 1])

    def _cut(self, epoch: int) -> list[int]:
        """Find the places at which the batches of an epoch begin, and then the first of the next."""
        sums = self._sums(epoch)
        before = epoch * len(self._row_tokens)
        place = self._first_places[epoch] - before
        bounds = [place]
        while sums[-1] - sums[place] > self._max_tokens:
            place = _last_within(sums, sums[place] + self._max_tokens)
            bounds.append(place)
        # The last batch is filled up with the first rows of the next epoch, so that every batch is full.
        left = self._max_tokens - (sums[-1] - sums[place])
        bounds.append(len(self._row_tokens) + _last_within(self._sums(epoch + 1), left))
        return [before + place for place in bounds]

    def _new_sums(self, epoch: int) -> npt.NDArray[np.int64]:
        """Count the tokens before each place of an epoch, and before its end, int64[rows + 1]."""
        return np.concatenate([[0], np.cumsum(self._row_tokens[self._order(epoch)], dtype=np.int64)])


def _last_within(sums: npt.NDArray[np.int64], limit: int) -> int:
    """The last place with no more than `limit` tokens before it."""
    return int(np.searchsorted(sums, limit, side="right")) - 1
