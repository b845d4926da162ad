"""A task's training data: read, encoded once, ready to be drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from palm.errors import DataError
from palm.logging import logger
from palm.reader.rows import Rows
from palm.sampling import TaskStream
from palm.task import Task

CHUNK_EXAMPLES = 4096  # examples that are text in memory at a time


def training_stream(task: Task, seed: int) -> TaskStream:
    """Read and encode a task's training file.

    Raises:
        DataError: a row that cannot be used, or no rows.
        TrainingError: fewer rows than one batch.
    """
    assert task.train_file is not None
    parts = list(_encoded(task))
    if not sum(len(part) for part in parts):
        raise DataError(f"{task.train_file}: no rows to train on")
    rows = Rows.concatenate([part for part in parts if len(part)])
    return TaskStream(task.name, task.reader, rows, task.batch_size, seed, task.shuffle)


def _encoded(task: Task) -> Iterator[Rows]:
    assert task.train_file is not None
    examples, first = task.reader.read(task.train_file, with_targets=True), True
    while chunk := list(islice(examples, CHUNK_EXAMPLES)):
        rows = task.reader.encode(chunk, with_targets=True)
        if first:
            _show(task, chunk, rows)
        first = False
        yield rows


def _show(task: Task, examples: list[object], rows: Rows) -> None:
    for number, example in enumerate(examples[: task.print_first_n]):
        logger.info("%s: example %d: %s", task.name, number, example)
        for row in range(len(rows)):
            if int(rows["example"][row]) == number:
                fields = {name: column[row].tolist() for name, column in rows.columns.items()}
                logger.info("%s: row %d: %s", task.name, row, fields)
