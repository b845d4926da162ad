"""Prediction as in PaddlePALM 2.x: its log lines, its forms of results, its messages about files."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from palm.compat.reader.loading import loading
from palm.core.layers import generator
from palm.core.logging import logger
from palm.core.saved import Tensors
from palm.predict.inference import InferenceModel
from palm.reader import Predictions, Reader, Record
from palm.reader.cache import encoded_chunks
from palm.train.task_model import Work, encoded

CHUNK_BATCHES = 32
"""Number of prediction batches whose texts are in memory at a time."""


def prediction_batches(task: str, reader: Reader, path: Path, batch_size: int) -> Iterator[Tensors]:
    """Yield batches of a file without targets, in its order; the last may be short.

    Args:
        task: the task's name, which affects what is masked.
        reader: of its data.
        path: the file.
        batch_size: rows per batch.
    """
    examples = reader.read(path, with_targets=False)
    chunks = encoded_chunks(reader, examples, with_targets=False, size=CHUNK_BATCHES * batch_size)
    # The mask depends on the position of a row in the file, so every pass has the same masks.
    for number, (_, rows) in enumerate(chunks):
        for start in range(0, len(rows), batch_size):
            indices = range(start, min(start + batch_size, len(rows)))
            yield reader.collate(rows, indices, partial(_masking, task, number, start))


def _masking(task: str, chunk: int, start: int, row: int) -> np.random.Generator:
    return generator(0, "mask", task, "batch", chunk, start + row)


def logged_work(model: InferenceModel, every: int, heading: str = "") -> Work:
    """Predict the file of the model's reader with outputs that the caller computes.

    A line is logged every `every` batches.
    """
    since = time.perf_counter()
    batches = 0
    reader = loading(model.reader)
    examples = reader.read(reader.loaded.path, with_targets=False)
    work = model.work(encoded(reader, examples), together=True)
    for made in work:
        while not isinstance(made, list):
            made = work.send((yield made))
            batches += 1
            if every > 0 and batches % every == 0:
                total = math.ceil(reader.num_examples / model.batch_size)
                now = time.perf_counter()
                speed = every / max(now - since, 1e-9)
                logger.info("%sbatch %d/%d, speed: %.2f steps/s", heading, batches, total, speed)
                since = now
        yield made


def results_of(
    reader: Reader, records: Iterable[Record], output_dir: str | Path | None
) -> Sequence[Any] | Predictions:
    """Return records in the form of 2.x, in memory or written to files."""
    results = loading(reader).results(records)
    if output_dir is None:
        return loading(reader).in_memory(results)
    folder = Path(output_dir)
    written = reader.write(results, folder)
    if isinstance(written, Mapping):
        logger.info("Writing predictions to: %s", folder / "predictions.json")
        logger.info("Writing nbest to: %s", folder / "nbest_predictions.json")
    else:
        logger.info("Predictions saved at %s", folder / "predictions.json")
    return written
