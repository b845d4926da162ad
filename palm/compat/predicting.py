"""Prediction as in PaddlePALM 2.x: its log lines, its forms of results, its messages about files."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.backbone import Backbone
from palm.backbone.packing import LAYOUT
from palm.compat.reader.loading import loading
from palm.core.device import resolved
from palm.core.layers import generator
from palm.core.logging import logger
from palm.core.saved import Tensors
from palm.paradigm import Head
from palm.predict.inference import InferenceModel
from palm.reader import Predictions, Reader, Record
from palm.reader.cache import encoded_chunks
from palm.train.loop import placed
from palm.train.model import outputs_of
from palm.train.task_model import encoded

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


def logged_steps(model: InferenceModel, every: int, heading: str = "") -> Iterator[list[Record]]:
    """Predict the file of the model's reader step by step; log a line every `every` batches."""
    since = time.perf_counter()
    batches = 0
    reader = loading(model.reader)
    examples = reader.read(reader.loaded.path, with_targets=False)
    for predictions in model.steps(encoded(reader, examples), together=True):
        yield [each.record for each in predictions]
        if predictions:
            continue
        batches += 1
        if every > 0 and batches % every == 0:
            total = math.ceil(reader.num_examples / model.batch_size)
            now = time.perf_counter()
            speed = every / max(now - since, 1e-9)
            logger.info("%sbatch %d/%d, speed: %.2f steps/s", heading, batches, total, speed)
            since = now


@torch.inference_mode()
def predicted(backbone: Backbone, head: Head, batch: Tensors, precision: str) -> Tensors:
    """Return the head's outputs for a batch, on the CPU."""
    device = next(backbone.parameters()).device
    outputs = outputs_of(backbone, head, placed(batch, device, backbone), resolved(precision, device))
    return {name: value.cpu() for name, value in outputs.items()}


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


class SharedPass(Backbone):
    """An encoder that keeps its outputs for the last batch, for the next head that reads it.

    Args:
        encoder: the wrapped encoder.
        heads: the heads that read from it; the outputs that any of them needs are computed together.
    """

    def __init__(self, encoder: Backbone, heads: Iterable[Head]) -> None:
        super().__init__()
        self.encoder = encoder
        self.inputs_attr = encoder.inputs_attr
        self.outputs_attr = encoder.outputs_attr
        self.is_packed = encoder.is_packed
        self._wanted = {name for head in heads for name in head.inputs_attr} & encoder.outputs_attr.keys()
        self._inputs: Tensors = {}
        self._outputs: Tensors = {}

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        given = {name: value for name, value in inputs.items() if name in {*self.inputs_attr, *LAYOUT}}
        if not self._is_last(given):
            self._outputs = self.encoder(given, self._wanted)
            self._inputs = given
        return {name: self._outputs[name] for name in (self._wanted if wanted is None else wanted)}

    def _is_last(self, inputs: Tensors) -> bool:
        last = self._inputs
        if {name: value.shape for name, value in inputs.items()} != {n: v.shape for n, v in last.items()}:
            return False
        # All at once, because the host waits for a GPU here.
        return bool(torch.stack([(value == last[name]).all() for name, value in inputs.items()]).all())
