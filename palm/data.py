"""A task's data: training rows ready to be drawn from, prediction batches in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from palm.contract import Tensors
from palm.distributed import num_ranks, rank
from palm.logging import logger
from palm.reader import Reader
from palm.reader.cache import DataCache, training_rows
from palm.reader.loaded import encoded_chunks
from palm.reader.rows import Rows
from palm.rng import generator
from palm.sampling import TaskStream
from palm.task import Task

CHUNK_BATCHES = 32
"""Prediction batches that are text in memory at a time."""


def training_stream(
    task: Task, seed: int, rows: Rows | None = None, cache: DataCache | None = None
) -> TaskStream:
    """A task's training file, encoded.

    Args:
        task: with its `train_file`.
        seed: the run's `random_seed`.
        rows: the file's rows, where they are encoded already.
        cache: where they are kept otherwise; None for nowhere.

    Raises:
        DataError: a row that cannot be used, or no rows.
        TrainingError: fewer rows than one batch.
    """
    assert task.train_file is not None
    if task.print_first_n > 0:
        _show(task, task.train_file)
    if rows is None:
        rows = training_rows(task.reader, task.train_file, cache)
    return TaskStream(
        task.name,
        task.reader,
        rows,
        task.batch_size,
        seed,
        task.shuffle,
        task.max_tokens_per_batch,
        rank(),
        num_ranks(),
    )


def prediction_batches(task: str, reader: Reader, path: Path, batch_size: int) -> Iterator[Tensors]:
    """Batches of a file without targets, in its order; the last may be short.

    Args:
        task: the task's name; it decides what is masked.
        reader: of its data.
        path: the file.
        batch_size: rows per batch.
    """
    examples = reader.read(path, with_targets=False)
    chunks = encoded_chunks(reader, examples, with_targets=False, size=CHUNK_BATCHES * batch_size)
    for number, (_, rows) in enumerate(chunks):
        for start in range(0, len(rows), batch_size):
            indices = range(start, min(start + batch_size, len(rows)))
            yield reader.collate(rows, indices, partial(_masking, task, number, start))


def _masking(task: str, chunk: int, start: int, row: int) -> np.random.Generator:
    return generator(0, "mask", task, "batch", chunk, start + row)


def _show(task: Task, path: Path) -> None:
    examples = list(islice(task.reader.read(path, with_targets=True), task.print_first_n))
    rows = task.reader.encode(examples, with_targets=True)
    for number, example in enumerate(examples):
        logger.info("%s: example %d: %s", task.name, number, example)
        for row in range(len(rows)):
            if int(rows["example"][row]) == number:
                fields = {name: column[row].tolist() for name, column in rows.columns.items()}
                logger.info("%s: row %d: %s", task.name, row, fields)
