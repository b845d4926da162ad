"""Which task a step trains, which rows it sees and how many steps there are: functions of position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from palm.batching import Batches, RowBatches, TokenBatches
from palm.contract import Tensors
from palm.errors import TrainingError
from palm.reader.base import Reader
from palm.reader.rows import Rows
from palm.rng import generator


def draw_task(seed: int, step: int, weights: Sequence[float]) -> int:
    """The index of the task that global step `step` (from 0) trains, drawn in proportion to `weights`."""
    bounds = np.cumsum(weights)
    point = generator(seed, "mix", step).random() * bounds[-1]
    return int(np.searchsorted(bounds, point, side="right"))


def plan_steps(num_epochs: float, mix_ratio: float, main_steps_per_epoch: int, share: float = 1.0) -> int:
    """How many steps a task is expected to get: `int(num_epochs * mix_ratio * steps per epoch of the main)`.

    Args:
        num_epochs: passes over the main task's training data.
        mix_ratio: of the task.
        main_steps_per_epoch: steps of one such pass.
        share: how often a mixing strategy draws the task beyond that, relative to the main task.

    Source: the 0.2.1 document, "expected training steps".
    """
    steps = num_epochs * mix_ratio * main_steps_per_epoch
    # A quotient of two sizes is not exact; its rounding must not cost a step.
    return int(steps) if share == 1.0 else int(round(steps * share, 6))


class TaskStream:
    """The endless batches of one task, each a function of its number.

    Epochs follow one another without a seam: the short rest of one is filled up from the next, so
    every row is seen once an epoch and every batch is full.

    Args:
        task: the task's name; with `seed` it decides the order of rows and what is masked.
        reader: makes batches of rows.
        rows: the encoded training data.
        batch_size: rows per batch; not used where there is `max_tokens_per_batch`.
        seed: the run's `random_seed`.
        shuffle: draw a new order for every epoch; otherwise the order of the file.
        max_tokens_per_batch: a batch has as many of the next rows as have no more tokens together.
        rank: which of every `num_ranks` consecutive batches is this process's.
        num_ranks: how many processes train, each on a batch of its own.

    Attributes:
        steps_per_epoch: PALM's accounting: how often all processes get a full batch in one pass over the
            rows, the first.

    Raises:
        TrainingError: too few rows for one batch, or one row with too many tokens.
    """

    def __init__(
        self,
        task: str,
        reader: Reader,
        rows: Rows,
        batch_size: int | None,
        seed: int,
        shuffle: bool = True,
        max_tokens_per_batch: int | None = None,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self.task, self.reader, self.rows = task, reader, rows
        self.seed, self.shuffle = seed, shuffle
        self._order = lru_cache(maxsize=2)(self._new_order)
        if max_tokens_per_batch is None:
            assert batch_size is not None, "neither batch_size nor max_tokens_per_batch"
            self._batches: Batches = self._of_rows(batch_size)
        else:
            self._batches = self._of_tokens(max_tokens_per_batch)
        self.rank, self.num_ranks = rank, num_ranks
        self.steps_per_epoch = self._batches.steps_per_epoch // num_ranks
        if self.steps_per_epoch == 0:
            raise TrainingError(
                f"task {task!r}: {len(rows)} training rows do not fill one batch on each of {num_ranks} "
                "devices; lower batch_size or max_tokens_per_batch, take fewer devices, or add data"
            )

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
        longest, total = int(np.argmax(row_tokens)), int(row_tokens.sum())
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

    def picks(self, step: int) -> list[tuple[int, int]]:
        """(epoch, row) of every row of this process's batch at `step`, counted from 0."""
        places = (
            divmod(place, len(self.rows)) for place in self._batches.places(step * self.num_ranks + self.rank)
        )
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def batch(self, step: int) -> Tensors:
        """This process's batch at `step`, counted from 0, on the CPU."""
        picks = self.picks(step)

        def draw(k: int) -> np.random.Generator:
            return generator(self.seed, "mask", self.task, *picks[k])

        return self.reader.collate(self.rows, [row for _, row in picks], draw)

    def _new_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(len(self.rows))
        return generator(self.seed, "shuffle", self.task, epoch).permutation(len(self.rows))
