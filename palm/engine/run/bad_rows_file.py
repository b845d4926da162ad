"""A file with the rows of a run's data that were left out or repaired."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from palm.core.files.door import make_folder
from palm.core.files.fs import write_text
from palm.core.logging import logger
from palm.engine.run.run_directory import BAD_ROWS
from palm.engine.training.task import Task


def write_bad_rows(folder: Path, tasks: Sequence[Task]) -> None:
    """Write `bad_rows.jsonl` where there are such rows, and name it: one row a line, of every file the first.

    Raises:
        StorageError: the folder cannot be written.
    """
    lines = []
    total = 0
    for task in tasks:
        assert task.stream is not None, "the training data is not loaded"
        for records, count in (task.stream.rows.bad, task.bad_dev_rows):
            lines += [json.dumps({"task": task.name, **record}, ensure_ascii=False) for record in records]
            total += count
    if total:
        make_folder(folder)
        write_text(folder / BAD_ROWS, "\n".join(lines) + "\n")
        listed = "" if len(lines) == total else f" the first {len(lines)} of"
        logger.warning(
            "%s lists%s the rows that were left out or repaired: %d", folder / BAD_ROWS, listed, total
        )
