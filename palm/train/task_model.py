"""A task's reader, encoder and head as one model, with the only loop that predicts and scores rows."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.backbone import Backbone
from palm.backbone.packing import POSITIONS
from palm.core.device import checked, resolved
from palm.core.errors import PalmError
from palm.core.group import (
    broadcast,
    exhaust,
    gather_objects,
    report_missing_ranks,
    split_among_ranks,
)
from palm.core.layers import WeightCache, generator
from palm.core.saved import Tensors
from palm.metrics import metrics_of, scores_of
from palm.metrics.resampling import Pair
from palm.paradigm import HEADS, Head
from palm.reader import Reader, Record, Rows
from palm.reader.cache import chunks_of
from palm.reader.rows import Ints
from palm.train.loop import fetched, placed
from palm.train.model import joint_outputs, restored_modes
from palm.train.model_card import example_input
from palm.train.saved_model import save_models
from palm.train.task import PREDICTION_ROWS

CHUNK_EXAMPLES = 1024
"""Number of examples in memory during prediction; rows are sorted by length within such a chunk."""

Losses = dict[tuple[int, int], tuple[float, int]]
"""(first example of the chunk, first row of the batch) -> the batch's mean loss and its number of terms."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive examples of a file, with their rows.

    Args:
        first: index of the first example in the file.
        examples: the examples, as the reader reads them.
        rows: their rows; with targets if a loss is wanted, and if the examples have any.
        numbers: the number of every row in its own file, which decides its masks, if the rows are those of
            several files; None if they are consecutive.
    """

    first: int
    examples: Sequence[Any]
    rows: Rows
    numbers: Sequence[int] | None = None


@dataclass(frozen=True)
class Prediction:
    """An example, the record that is predicted for it, and its gold values if they were asked for."""

    example: Any
    record: Record
    gold: Record | None


Work = Generator[Tensors | list[Prediction], Tensors, None]
"""Yields the batches of a task, for whose outputs it waits, and after a chunk's last one its predictions."""


def encoded(
    reader: Reader, examples: Iterable[Any], first: int = 0, with_targets: bool = False, step: int = 1
) -> Iterator[Chunk]:
    """Encode examples in chunks, lazily.

    Args:
        reader: the reader of the examples.
        examples: those of `Reader.read`, or of `Reader.read_gold` to score them.
        first: index in the file of the first one.
        with_targets: encode with targets, for the loss, where the examples have any.
        step: encode only every `step`-th chunk, beginning with the first.
    """
    for number, chunk in enumerate(chunks_of(examples, CHUNK_EXAMPLES)):
        if number % step == 0:
            rows = _with_targets(reader, chunk) if with_targets else None
            if rows is None:
                rows = reader.encode_usable(chunk, with_targets=False)
            yield Chunk(first, chunk, rows)
        first += len(chunk)


def _with_targets(reader: Reader, examples: Sequence[Any]) -> Rows | None:
    """Encode examples with targets; None if they have none, or if training would leave out one of them."""
    with suppress(PalmError, AttributeError):  # read_gold may return other examples than read
        rows = reader.encode(examples, with_targets=True)
        if len(np.unique(rows["example"].values)) == len(examples):
            return rows
    return None


class TaskModel:
    """Reader, encoder and head of one task, ready to predict and to be saved.

    Args:
        task: the task's name.
        reader: turns text into batches and decoded outputs into records.
        backbone: the trained encoder.
        head: the trained head.
        batch_size: average number of rows per prediction step; steps have similar numbers of tokens.
        precision: 'fp32', 'bf16', or 'auto' for the faster of both on the device.

    Raises:
        ConfigError: an unknown `precision`.
    """

    def __init__(
        self,
        task: str,
        reader: Reader,
        backbone: Backbone,
        head: Head,
        *,
        batch_size: int = PREDICTION_ROWS,
        precision: str = "auto",
    ) -> None:
        self.task = task
        self.reader = reader
        self.backbone = backbone
        self.head = head
        self.batch_size = batch_size
        self.precision = checked(precision)
        head.adapt(backbone.head_layers)
        self._weight_cache = WeightCache()

    def __repr__(self) -> str:
        parts = ", ".join(type(part).__name__ for part in (self.reader, self.backbone, self.head))
        return f"{type(self).__name__}({self.task!r}, {parts})"

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(self.backbone.parameters()).device

    def weights(self) -> Tensors:
        """Return all weights as they are saved; names begin with `backbone.` or `paradigm.`."""
        return {**self.backbone.state_dict(prefix="backbone."), **self.head.state_dict(prefix="paradigm.")}

    def predictions(
        self,
        chunks: Iterable[Chunk],
        *,
        with_gold: bool = False,
        losses: Losses | None = None,
        together: bool = False,
    ) -> Iterator[Prediction]:
        """Predict chunks of examples; yield one prediction per example, in order.

        Args:
            chunks: see `encoded`.
            with_gold: also yield the gold values of the examples, which are those of `Reader.read_gold`;
                records then also have the head's `eval_outputs`.
            losses: filled with the loss of every batch whose rows have targets.
            together: divide the batches among all ranks, which must all call this with the same examples;
                only rank 0 gets predictions. The batches are the same as in a single process.
        """
        work = self.work(chunks, with_gold, losses, together)
        for made in work:
            while not isinstance(made, list):
                made = work.send(self.outputs(made))
            yield from made

    def work(
        self,
        chunks: Iterable[Chunk],
        with_gold: bool = False,
        losses: Losses | None = None,
        together: bool = False,
        whole: bool = False,
    ) -> Work:
        """Predict with outputs that the caller computes, see `Work`.

        The arguments are those of `predictions`; with `whole`, each chunk is one batch.
        """
        for chunk in chunks:
            # Sorted by length only within the chunk, so memory is bounded and records are in order.
            size = max(1, len(chunk.rows)) if whole else self.batch_size
            batches = even_batches(chunk.rows.lengths, size)
            decoded: dict[int, Record] = {}
            # A batch is read after the next one is queued, so a GPU does not wait for the host.
            unread: list[Callable[[], None]] = []
            for indices in split_among_ranks(batches) if together else batches:
                batch = self.batch(chunk, indices)
                outputs = yield batch
                unread.append(self._reading(chunk, indices, batch, outputs, with_gold, decoded, losses))
                if len(unread) > 1:
                    unread.pop(0)()
            for read in unread:
                read()
            # Only rank 0 gets the parts of all ranks.
            parts = gather_objects(decoded) if together else [decoded]
            every_row = {row: value for part in parts for row, value in part.items()}
            yield self._predictions_of(chunk, every_row, with_gold) if parts else []

    def _predictions_of(
        self, chunk: Chunk, decoded: Mapping[int, Record], with_gold: bool
    ) -> list[Prediction]:
        in_order = [decoded[row] for row in range(len(chunk.rows))]
        records = self.reader.records(chunk.examples, chunk.rows, in_order, chunk.first)
        gold = map(self.reader.gold, chunk.examples) if with_gold else repeat(None, len(chunk.examples))
        return [Prediction(*each) for each in zip(chunk.examples, records, gold, strict=True)]

    @torch.inference_mode()
    def _reading(
        self,
        chunk: Chunk,
        indices: Sequence[int],
        batch: Tensors,
        outputs: Tensors,
        is_scored: bool,
        decoded: dict[int, Record],
        losses: Losses | None,
    ) -> Callable[[], None]:
        """Return a function that waits for a batch's outputs and fills `decoded` and `losses`."""
        # Started before the loss, so a GPU copies the outputs while it computes the loss.
        computed = fetched(outputs)
        has_loss = losses is not None and self.head.targets_attr.keys() <= batch.keys()
        terms = self.head.num_terms(batch) if has_loss else 0  # 0 if no row has a masked word
        on_device = placed(batch, self.device, self.backbone) if terms else {}
        loss = self.head.loss(outputs, on_device) if terms else torch.zeros(())
        computed_loss = fetched({"loss": loss})

        @torch.inference_mode()
        def read() -> None:
            values = self.head.decode(computed())
            if is_scored:
                for value, extra in zip(values, self.head.eval_outputs(computed(), batch), strict=False):
                    value.update(extra)
            if losses is not None and terms:
                losses[chunk.first, indices[0]] = (float(computed_loss()["loss"]), terms)
            decoded.update(zip(indices, values, strict=True))

        return read

    def batch(self, chunk: Chunk, indices: Sequence[int]) -> Tensors:
        """Collate some rows of a chunk; their masks depend on its first example and on the row."""

        def draw(k: int) -> np.random.Generator:
            # A function of the row's position, as in training, so a resumed prediction masks the same words.
            number = indices[k] if chunk.numbers is None else chunk.numbers[indices[k]]
            return generator(0, "mask", self.task, "predict", chunk.first, number)

        return self.reader.collate(chunk.rows, indices, draw)

    def outputs(self, batch: Tensors) -> Tensors:
        """Compute the head's outputs for a batch on the host."""
        return shared_outputs([self], [batch], self._weight_cache)[0]

    def score(
        self,
        chunks: Iterable[Chunk],
        metrics: Sequence[str],
        *,
        losses: Losses | None = None,
        tune: bool = False,
        pairs: list[Pair] | None = None,
    ) -> dict[str, float]:
        """Score the predictions of examples with labels; all ranks must call this, and divide the work.

        Args:
            chunks: of examples of `Reader.read_gold`.
            metrics: names of metrics.
            losses: as for `predictions`.
            tune: first fit the head to the examples (see `Head.tune`).
            pairs: filled with the scored records and their gold values, on rank 0.
        """
        with (
            restored_modes(self.backbone, self.head),
            report_missing_ranks(f"while evaluating {self.task!r}"),
        ):
            predictions = self.predictions(chunks, with_gold=True, losses=losses, together=True)

            def scored() -> dict[str, float]:
                found = ((each.record, each.gold or {}) for each in predictions)
                fitted: Iterable[Pair] = self.head.tune(found) if tune else found
                if pairs is not None:
                    pairs.extend(fitted)
                    fitted = iter(pairs)
                return scores_of(metrics_of(metrics), fitted)

            scores = broadcast(scored, lambda: exhaust(predictions))
            for fitted in self.head.buffers() if tune else ():
                fitted.copy_(broadcast(fitted.cpu))
            return scores

    def save(self, folder: str | Path, **options: Any) -> None:
        """Save the model by itself; options and errors as for `palm.train.saved_model.save_models`."""
        save_models([self], self.backbone, folder, **options)

    @property
    def example(self) -> str:
        """A list of one value that `predict` takes, as Python code."""
        return example_input(self.reader, HEADS.name_of(type(self.head)))

    def examples(self) -> list[Any]:
        """Return that list."""
        return list(ast.literal_eval(self.example))


@torch.inference_mode()
def shared_outputs(
    models: Sequence[TaskModel], batches: Sequence[Tensors], weight_cache: WeightCache
) -> list[Tensors]:
    """Compute the outputs of several heads in one pass of their encoder.

    Args:
        models: of several tasks with the same encoder and precision.
        batches: a batch on the host for each, which are all the same for the encoder.
        weight_cache: of the encoder and the heads.
    """
    first = models[0]
    device = first.device
    on_device = [placed(batches[0], device, first.backbone)]
    # Inputs of the encoder are copied to the device only once.
    read = {*first.backbone.inputs_attr, POSITIONS}
    inputs = {name: value for name, value in on_device[0].items() if name in read}
    for batch in batches[1:]:
        own = {name: value.to(device) for name, value in batch.items() if name not in read}
        on_device.append(inputs | own)
    heads = [model.head for model in models]
    modules: list[torch.nn.Module] = [first.backbone, *heads]
    for module in modules:
        if module.training:  # `eval` visits all parts, which takes 1 ms
            module.eval()
    count = len(models)
    with weight_cache.active():
        precision = resolved(first.precision, device)
        return joint_outputs([first.backbone] * count, heads, on_device, [0] * count, precision)


def mean_loss(parts: Iterable[Losses]) -> float | None:
    """Average the losses of batches over their terms; None if there are none."""
    # If batches do not divide evenly, several ranks compute the last one, which counts once.
    losses = {place: value for part in parts for place, value in part.items()}.values()
    terms = sum(count for _, count in losses)
    return math.fsum(loss * count for loss, count in losses) / terms if terms else None


def even_batches(lengths: Ints, batch_size: int) -> list[list[int]]:
    """Divide rows, sorted by length, into batches with about the same number of tokens.

    A step then needs memory for average rows instead of the longest ones, and on a GPU short rows do not make
    small matrix products. On a CPU, where padding is not computed, the time is the same as with equal numbers
    of rows.

    Args:
        lengths: tokens of every row, int64[rows].
        batch_size: average number of rows per batch.

    Returns:
        No more batches than there would be with `batch_size` rows each.
    """
    # Stable, so equal lengths have the same order on every platform.
    order = np.argsort(lengths, kind="stable")
    if 0 < len(order) <= batch_size:
        return [order.tolist()]
    tokens = np.maximum(lengths[order], 1)
    ends = np.cumsum(tokens)
    count = math.ceil(len(order) / batch_size)
    # A row belongs to the batch that contains the middle of its tokens.
    numbers = (2 * ends - tokens) * count // (2 * ends[-1:])
    return [part.tolist() for part in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(part)]
