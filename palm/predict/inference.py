"""The trained model of one task, complete in one directory: from text to predictions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from palm.backbone import BACKBONES, Backbone
from palm.core.checks import path_problems, raise_any, type_problems
from palm.core.errors import ConfigError, DataError, PalmError, StorageError
from palm.core.files.atomic_dir import new_directory
from palm.core.files.fs import check_not_read, write_json, write_text
from palm.core.files.serialization import describe
from palm.core.files.tensors import save_tensors, tensor_digests
from palm.core.limits import LESS_PREDICTED, explain_limits
from palm.core.numerics.precision import checked, resolved
from palm.core.numerics.rng import generator
from palm.core.numerics.weight_cache import WeightCache
from palm.core.shown import printable
from palm.core.tensor_specs import Tensors
from palm.core.version import __version__
from palm.metrics import metric_problems, metrics_of, scores_of
from palm.paradigm import HEADS, Head
from palm.paradigm.base import Judged
from palm.parallel.failures import report_missing_ranks
from palm.parallel.group import broadcast, exhaust, gather_objects, is_main_process, split_among_ranks
from palm.parallel.shards import full_tensors
from palm.predict.adapted import Adapted
from palm.predict.model_card import CARD, example_input, label_names, model_card
from palm.predict.model_paths import ADAPTERS, DESCRIPTION, FORMAT, VERSION, WEIGHTS
from palm.predict.onnx.computing import OnnxEngine
from palm.predict.prediction_resume import PredictionLog
from palm.reader import READERS, Predictions, Reader, Record, Rows
from palm.reader.chunks import chunks_of
from palm.reader.predicted_tables import check_output_name, is_table_name, write_table
from palm.reader.predictions import PREDICTION_FILES
from palm.reader.rows.rows import Ints
from palm.reader.tables.selection import data_checksum, sources_of
from palm.train.device_transfer import Place, fetched, placed
from palm.train.model import outputs_of, restored_modes
from palm.train.task import PREDICTION_ROWS

CHUNK_EXAMPLES = 1024
"""Number of examples in memory during prediction; rows are sorted by length within such a chunk."""


Losses = dict[tuple[int, int], tuple[float, int]]
"""(first example of the chunk, first row of the batch) -> the batch's mean loss and its number of terms."""


class InferenceModel:
    """Reader, backbone and head of one task, ready to predict.

    Args:
        task: the task's name.
        reader: turns text into batches and decoded outputs into records.
        backbone: the trained encoder.
        head: the trained head.
        batch_size: average number of rows per prediction step; steps have similar numbers of tokens.
        precision: 'fp32', 'bf16', or 'auto' for the faster of both on the device.

    Attributes:
        engine: an engine that computes instead of torch, see `loading.load_model`; None for torch.
        adapted: the adapters that are merged into its encoder, saved separately as well; None if none.
        place: moves its batches to the device.
        trained: the checksum of the run's `dev_file`; for a best model also the global `step` after which it
            was saved, and its `scores`.

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
        self.engine: OnnxEngine | None = None
        self.place: Place = placed
        self.trained: dict[str, Any] = {}
        self.adapted: Adapted | None = None

    def __repr__(self) -> str:
        parts = ", ".join(type(part).__name__ for part in (self.reader, self.backbone, self.head))
        return f"InferenceModel({self.task!r}, {parts})"

    def weights(self) -> Tensors:
        """Return all weights as they are saved; names begin with `backbone.` or `paradigm.`."""
        return {**self.backbone.state_dict(prefix="backbone."), **self.head.state_dict(prefix="paradigm.")}

    def to(self, device: torch.device | str) -> InferenceModel:
        """Move to a device.

        Raises:
            PalmError: the device is not the CPU, but the engine supports nothing else.
        """
        if self.engine is not None and torch.device(device).type != "cpu":
            raise PalmError(f"engine 'onnx' runs on the CPU, not on {device}; load the model without it")
        self.backbone.to(device)
        self.head.to(device)
        return self

    def other_data(self, dev_file: Path) -> str | None:
        """Return a message if a dev file is not the one that the run was evaluated on, or None."""
        known = self.trained.get("dev_file")
        if known is None or known == data_checksum(dev_file):
            return None
        return f"{dev_file}: not the file that the run was evaluated on, with SHA-256 {known[:12]}…"

    @explain_limits(LESS_PREDICTED)
    def predict(self, texts: Iterable[Any]) -> list[Record]:
        """Predict Python values: texts, pairs, or dicts with the data file's columns.

        Args:
            texts: one value per example: for cls and mlm a text, for match `(text_a, text_b)`, for mrc
                `(question, context)`, or a dict of the columns (`{"text_a": …}`).

        Returns:
            One record per example, as written by `controller.pred`.

        Raises:
            DataError: not a list of texts, or a text cannot be read; its number is named.
        """
        if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
            raise DataError(
                f"predict takes a list of texts, not {str(texts)[:40]!r} ({type(texts).__name__}); "
                "for one text, write predict([text])"
            )
        return list(self.records(self.reader.parse(texts)))

    @explain_limits(LESS_PREDICTED)
    def predict_file(self, path: str | Path, directory: str | Path, *, resume: bool = False) -> Predictions:
        """Predict a data file of any size in bounded memory and write the predictions to a folder or a table.

        All ranks must call this; they divide the work, and rank 0 writes. A stopped prediction leaves its
        finished examples in the folder, in `.predictions.resume`.

        Args:
            path: the data file.
            directory: the output folder, created if necessary; predictions appear there when they are
                complete. A name that ends in `.jsonl`, `.csv` or `.parquet` writes a table instead, with the
                columns of the input followed by those of the task.
            resume: continue a stopped prediction; the result is the same as without the stop.

        Raises:
            DataError: a row cannot be read; its file and line are named.
            StorageError: the directory cannot be written, or holds another stopped prediction.
        """
        raise_any(path_problems(path=path, directory=directory))
        file = Path(path)
        target = Path(directory)
        check_output_name(target)
        is_table = is_table_name(target) and not target.is_dir()
        directory = target.parent if is_table else target
        for name in [target.name] if is_table else PREDICTION_FILES:
            check_not_read(directory / name, sources_of(file))
        # Now, because another file may take its name while this one is read.
        digest = data_checksum(file, "blake2b") if is_main_process() else ""
        log = PredictionLog(directory, lambda: self._about(digest))
        if resume and is_main_process():
            log.resume()
        # Only the first rank has the log, but all ranks skip its examples.
        done = broadcast(lambda: log.num_examples)
        examples = islice(self.reader.read(file, with_targets=False), done, None)
        steps = self.steps(examples, together=True, first=done)
        if is_main_process():
            # First the records of the stopped prediction, then the new ones.
            steps = chain(log.chunks(), log.logged(steps))
        records = chain.from_iterable(steps)
        hidden = None if is_main_process() else True
        progress = tqdm(records, desc=f"predicting {printable(self.task)}", unit=" examples", disable=hidden)
        with report_missing_ranks(f"while predicting {self.task!r}"), log:
            if is_table:
                make = partial(write_table, progress, target, self.reader, file)
                return broadcast(make, lambda: exhaust(records))
            return broadcast(lambda: self.reader.write(progress, directory), lambda: exhaust(records))

    def _about(self, digest: str) -> dict[str, Any]:
        """Return all that predictions depend on, with the file's digest: name in messages -> value."""
        device = next(self.backbone.parameters()).device
        weights = tensor_digests(self.weights())
        return {
            "model": hashlib.blake2b(json.dumps(weights).encode(), digest_size=16).hexdigest(),
            "input file": digest,
            "reader": json.dumps(self.reader.settings, default=str),
            "batch size": self.batch_size,
            "precision": self.engine.about
            if self.engine
            else f"{resolved(self.precision, device)} on {device.type}",
        }

    def records(self, examples: Iterable[Any]) -> Iterator[Record]:
        """Yield one record per example, in order; examples are read and predicted in chunks."""
        return chain.from_iterable(self.steps(examples))

    def evaluate(
        self, path: str | Path, metrics: Sequence[str] | None = None, output: str | Path | None = None
    ) -> dict[str, float]:
        """Score the predictions of a file with labels; every example counts once.

        All ranks must call this; they divide the work.

        Args:
            path: a data file in the format of training data.
            metrics: names from `palm.metrics.METRICS` or dotted paths; None: the metrics of the head.
            output: a `.jsonl`, `.csv` or `.parquet` file for the scored rows with their predictions, as in
                `predict_file`.

        Returns:
            The scores by name, those of the first metric first.

        Raises:
            ConfigError: a metric is unknown or does not fit the reader.
            DataError: a row cannot be used; its file and line are named.
            StorageError: the output cannot be written, or is the input.
        """
        target = None if output is None else Path(output)
        if target is not None:
            check_not_read(target, sources_of(Path(path)))
            if not is_table_name(target):
                raise StorageError(f"{target}: expected a name that ends in .jsonl, .csv or .parquet")
        return self.evaluate_with_loss(path, metrics, output=target)[0]

    @explain_limits(LESS_PREDICTED)
    def evaluate_with_loss(
        self,
        path: str | Path,
        metrics: Sequence[str] | None = None,
        tune: bool = False,
        output: Path | None = None,
    ) -> tuple[dict[str, float], float | None]:
        """Compute `evaluate` and the mean loss; the loss is None if training has other rows, such as windows.

        With `tune`, the head is first fitted to the file (see `Head.tune`).
        """
        raise_any(path_problems(path=path))
        raise_any(type_problems((list, tuple, NoneType), "a list of names", metrics=metrics))
        names = self.head.metrics if metrics is None else metrics
        raise_any(problem for name in names for problem in type_problems(str, "a name", metric=name))
        if problems := metric_problems(names, self.reader.truth_names):
            raise ConfigError(problems)
        losses: Losses = {}
        seen, known, *written = tee(self.reader.read_true(Path(path)), 2 if output is None else 3)

        take: Callable[[Iterator[Mapping[str, Any]]], object] = exhaust
        if output is not None:
            take = partial(
                write_table, path=output, reader=self.reader, source=Path(path), examples=written[0]
            )
        with (
            restored_modes(self.backbone, self.head),
            report_missing_ranks(f"while evaluating {self.task!r}"),
        ):
            records = chain.from_iterable(self.steps(seen, losses=losses, together=True))
            pairs: Iterable[Judged] = zip(records, self.reader.truths(known), strict=True)
            fit = self.head.tune if tune else iter
            scores = broadcast(
                lambda: scores_of(metrics_of(names), fit(pairs), take), lambda: exhaust(records)
            )
            for fitted in self.head.buffers() if tune else ():
                fitted.copy_(broadcast(fitted.cpu))
            return scores, mean_loss(gather_objects(losses))

    def steps(
        self,
        examples: Iterable[Any],
        losses: Losses | None = None,
        together: bool = False,
        first: int = 0,
    ) -> Iterator[list[Record]]:
        """Predict batch by batch; yield an empty list after each batch, and the records after each chunk.

        Args:
            examples: the examples, as the reader reads them.
            losses: filled with the loss of every batch, and records get the head's `eval_outputs`. It stays
                empty if prediction has other rows than training.
            together: divide the batches among all ranks, which must all call this with the same examples;
                only rank 0 gets records. The batches are the same as in a single process.
            first: index in the file of the first example, if earlier ones are predicted already.
        """
        for chunk in chunks_of(examples, CHUNK_EXAMPLES):
            rows = self.reader.encode(chunk, with_targets=False)
            # Encoded twice, since a reader may skip rows or make other ones when it needs labels.
            labelled = None if losses is None else self._labelled(chunk, rows)
            # Sorted by length only within the chunk, so memory is bounded and records are in order.
            batches = even_batches(rows.lengths, self.batch_size)
            decoded: dict[int, dict[str, Any]] = {}
            # A batch is read after the next one is queued, so a GPU does not wait for the host.
            unread: list[Callable[[], None]] = []
            for indices in split_among_ranks(batches) if together else batches:
                unread.append(self._compute(rows, indices, first, labelled, decoded, losses))
                if len(unread) > 1:
                    unread.pop(0)()
                yield []
            for read in unread:
                read()
            # Only rank 0 gets the parts of all ranks; without parts there are no records.
            parts = gather_objects(decoded) if together else [decoded]
            whole = {row: value for part in parts for row, value in part.items()}
            in_order = [whole[row] for row in range(len(rows))] if parts else []
            yield list(self.reader.records(chunk, rows, in_order, first)) if parts else []
            first += len(chunk)

    def _labelled(self, chunk: list[Any], rows: Rows) -> Rows | None:
        """Encode the same rows with targets; None if training has other rows, or cannot use one."""
        try:
            labelled = self.reader.encode(chunk, with_targets=True)
        except (PalmError, AttributeError):  # read_true may return other examples than read
            return None
        same = all(
            name in labelled and np.array_equal(labelled[name].values, rows[name].values)
            for name in ("example", "token_ids")
        )
        return labelled if same else None

    @torch.inference_mode()
    def _compute(
        self,
        rows: Rows,
        indices: Sequence[int],
        first: int,
        labelled: Rows | None,
        decoded: dict[int, dict[str, Any]],
        losses: Losses | None,
    ) -> Callable[[], None]:
        """Compute a batch; return a function that waits for it and fills `decoded` and `losses`."""
        batch = self._batch(rows, indices, first)
        outputs = self._outputs(batch)
        # Started before the loss, so a GPU copies the outputs while it computes the loss.
        computed = fetched(outputs)
        targets = {} if labelled is None else self._batch(labelled, indices, first)
        terms = self.head.num_terms(targets) if targets else 0  # 0 if no row has a masked word
        loss = self.head.loss(outputs, self._placed(targets)) if terms else torch.zeros(())
        computed_loss = fetched({"loss": loss})

        @torch.inference_mode()
        def read() -> None:
            values = self.head.decode(computed())
            if losses is not None:
                for value, extra in zip(values, self.head.eval_outputs(computed(), batch), strict=False):
                    value.update(extra)
                if terms:
                    losses[first, indices[0]] = (float(computed_loss()["loss"]), terms)
            decoded.update(zip(indices, values, strict=True))

        return read

    def _batch(self, rows: Rows, indices: Sequence[int], first: int) -> Tensors:
        """Collate some rows; their masks depend on the chunk's first example and on the row."""

        def draw(k: int) -> np.random.Generator:
            # A function of the row's position, as in training, so a resumed prediction masks the same words.
            return generator(0, "mask", self.task, "predict", first, indices[k])

        return self.reader.collate(rows, indices, draw)

    def _placed(self, batch: Tensors) -> Tensors:
        return self.place(batch, next(self.backbone.parameters()).device, self.backbone)

    def _outputs(self, batch: Tensors) -> Tensors:
        """Compute the head's outputs for a batch on the host."""
        batch = self._placed(batch)
        for module in (self.backbone, self.head):
            if module.training:  # `eval` visits all parts, which takes 1 ms
                module.eval()
        if self.engine is not None:
            return self.engine(batch)
        precision = resolved(self.precision, next(self.backbone.parameters()).device)
        with self._weight_cache.active():
            return outputs_of(self.backbone, self.head, batch, precision)

    def save(
        self,
        folder: str | Path,
        run: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Write one self-contained directory: weights, components and settings, vocabulary, labels, a card.

        Args:
            folder: a new folder, written atomically. All ranks must call this; rank 0 writes.
            run: the configuration of the run that trained the model, stored for the record.
            training: the training data and scores (see `palm.train.training_metadata`), also stored.
            overwrite: replace an existing folder if palm wrote it and it contains nothing else.

        Raises:
            StorageError: the folder exists or cannot be written; nothing is left half-written.
        """
        raise_any(path_problems(folder=folder))
        # All ranks take part in gathering sharded weights, so the others return only after it.
        weights = full_tensors(self.weights())
        if not is_main_process():
            return
        record = {"run": run or {}, "training": training or {}}
        with new_directory(Path(folder), overwrite) as part:
            self._write(part, weights, record)
            if self.adapted is not None:
                with new_directory(part / ADAPTERS) as small:
                    self.adapted.write(small)
                    self._write(small, self.adapted.extras(weights), {**record, **self.adapted.facts()})

    def _write(self, part: Path, weights: Tensors, record: Mapping[str, Any]) -> None:
        save_tensors(part / WEIGHTS, weights)
        description = {
            "format": FORMAT,
            "version": VERSION,
            "palm_version": __version__,
            "task": self.task,
            "batch_size": self.batch_size,
            "reader": describe(READERS, self.reader, part),
            "backbone": describe(BACKBONES, self.backbone, part),
            "paradigm": describe(HEADS, self.head, part),
            **record,
        }
        write_json(part / DESCRIPTION, description)
        example = example_input(self.reader, HEADS.name_of(type(self.head)))
        write_text(part / CARD, model_card(description, label_names(self.reader, self.head), example))


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
