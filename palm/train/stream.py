"""The endless batches of one task; their rows and order are functions of position."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from palm.core.errors import TrainingError
from palm.core.layers import generator
from palm.core.saved import Tensors
from palm.reader.base import Reader
from palm.reader.rows import Rows

WINDOW = 50
"""Number of batches whose rows are sorted by length together, so batches still have random rows."""


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
        batch_size: rows per batch.
        shuffle: draw a new order for every epoch; otherwise the order of the file.
        rank: this process's batch among every `world_size` consecutive ones.
        world_size: number of processes that train, each on its own batch.

    Attributes:
        steps_per_epoch: number of full batches per process in the first pass over the rows, as PALM counts.

    Raises:
        TrainingError: too few rows for one batch.
    """

    task: str
    reader: Reader
    rows: Rows
    _: KW_ONLY
    seed: int
    batch_size: int
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        self._is_grouped = False
        self._order = lru_cache(maxsize=2)(self._new_order)  # a batch may reach into the next epoch
        self.steps_per_epoch = len(self.rows) // self.batch_size // self.world_size
        if self.steps_per_epoch == 0:
            most = max(1, len(self.rows) // self.world_size)
            devices = f" on each of {self.world_size} devices" if self.world_size > 1 else ""
            raise TrainingError(
                f"task {self.task!r}: {len(self.rows)} training rows do not fill one batch{devices}; "
                f"set batch_size (now {self.batch_size}) to {most} or less, or add data"
            )

    def group_by_length(self) -> None:
        """Group rows of similar length into batches, in random order; for encoders that compute padding.

        Nothing changes if rows are not shuffled.
        """
        self._is_grouped = self.shuffle
        self._order.cache_clear()

    def in_order_of(self, other: TaskStream) -> TaskStream:
        """Return these rows, with their labels, in the batches and the order of another stream."""
        # A shallow copy: both streams share the cache of orders.
        stream = copy.copy(other)
        stream.task = self.task
        stream.reader = self.reader
        stream.rows = self.rows
        return stream

    def picks(self, step: int) -> list[tuple[int, int]]:
        """Return (epoch, row) of every row of this process's batch at `step`, counted from 0."""
        # A function of the step without state, so a run can resume anywhere. Place p of the chain of epochs
        # is row `p % rows` of the order of epoch `p // rows`; consecutive batches go to ranks 0, 1, 2 …
        first = (step * self.world_size + self.rank) * self.batch_size
        places = (divmod(place, len(self.rows)) for place in range(first, first + self.batch_size))
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def batch(self, step: int) -> Tensors:
        """Return this process's batch at `step`, counted from 0, on the CPU."""
        picks = self.picks(step)

        # Seeded by epoch and row, so a row's mask does not depend on batch size or number of devices.
        def draw(k: int) -> np.random.Generator:
            return generator(self.seed, "mask", self.task, *picks[k])

        return self.reader.collate(self.rows, [row for _, row in picks], draw)

    def _new_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(len(self.rows))
        rng = generator(self.seed, "shuffle", self.task, epoch)
        order = rng.permutation(len(self.rows))
        return self._grouped(order, epoch, rng) if self._is_grouped else order

    def _grouped(
        self, order: npt.NDArray[np.int64], epoch: int, rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        size = self.batch_size
        tokens = self.rows.lengths
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
