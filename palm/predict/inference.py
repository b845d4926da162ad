"""The trained model of one task, loaded from its directory: from text to predictions and scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import torch

from palm.config.files import data_path
from palm.core.cache import LESS_PREDICTED, explain_limits
from palm.core.component import path_problems, raise_any, type_problems
from palm.core.device import resolved
from palm.core.errors import ConfigError, DataError, PalmError, StorageError
from palm.core.group import is_main_process
from palm.core.io import check_not_read
from palm.core.saved import Tensors, tensor_digests
from palm.metrics import metric_problems
from palm.predict.log import COMPUTED, Write
from palm.predict.onnx import OnnxEngine
from palm.reader import Predictions, Record
from palm.reader.predictions import (
    PREDICTION_FILES,
    check_output_name,
    is_table_name,
    write_table,
)
from palm.reader.tables.files import data_checksum, sources_of
from palm.train.task_model import TaskModel, encoded


class Output(NamedTuple):
    """The predictions of a file.

    Args:
        file: the data file.
        folder: the folder of the predictions.
        table: the name of their table in it; "" for the files of the reader.
        about: returns all that they depend on (see `PredictionLog`).
        write: writes all records.
    """

    file: Path
    folder: Path
    table: str
    about: Callable[[], Mapping[str, Any]]
    write: Write


class InferenceModel(TaskModel):
    """A task's model that predicts texts and files, see `palm.load_model`.

    Attributes:
        engine: an engine that computes instead of torch, which tasks may share; None for torch.
        trained: the checksum of the run's `dev_file`; for a best model also the global `step` after which it
            was saved, and its `scores`.
    """

    engine: OnnxEngine | None = None
    trained: Mapping[str, Any] = {}

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

    def outputs(self, batch: Tensors) -> Tensors:
        return super().outputs(batch) if self.engine is None else self.engine({self.task: batch})[self.task]

    def other_data(self, dev_file: Path) -> str | None:
        """Return a message if a dev file is not the one that the run was evaluated on, or None."""
        known = self.trained.get("dev_file")
        if known is None or known == data_checksum(dev_file):
            return None
        return f"{dev_file}: not the file that the run was evaluated on, with SHA-256 {known[:12]}…"

    def records(self, examples: Iterable[Any]) -> Iterator[Record]:
        """Yield one record per example, in order; examples are read and predicted in chunks."""
        return (each.record for each in self.predictions(encoded(self.reader, examples)))

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
        check_texts(texts)
        return list(self.records(self.reader.parse(texts)))

    def predict_file(
        self, path: str | Path, directory: str | Path, *, resume: bool = False, shard: str | None = None
    ) -> Predictions:
        """Predict a data file of any size in bounded memory and write the predictions to a folder or a table.

        All ranks must call this; they divide the work, and rank 0 writes. A stopped prediction leaves its
        finished examples in the folder, in `.predictions.resume`.

        Args:
            path: the data file.
            directory: the output folder, created if necessary; predictions appear there when they are
                complete. A name that ends in `.jsonl`, `.csv` or `.parquet` writes a table instead, with the
                columns of the input followed by those of the task.
            resume: continue a stopped prediction; the result is the same as without the stop.
            shard: 'K/N' predicts part K of N, for a job of several, and keeps it in the folder; 'merge/N'
                then writes the predictions from all N parts, the same bytes as without parts.

        Raises:
            ConfigError: `shard` has another form.
            DataError: a row cannot be read; its file and line are named.
            StorageError: the directory cannot be written, or holds another stopped prediction.
        """
        from palm.predict.joint import JointModel  # which consists of these models

        files = {self.task: (path, directory)}
        return JointModel({self.task: self}).predict_files(files, resume=resume, shard=shard)[self.task]

    def output_of(self, path: str | Path, directory: str | Path) -> Output:
        """Return how to write the predictions of a file; arguments and errors as for `predict_file`."""
        raise_any(path_problems(path=path, directory=directory))
        file = data_path(path)
        target = Path(directory)
        is_table = _checked_table(file, target)
        folder = target.parent if is_table else target
        # Now, because another file may take its name while this one is read.
        digest = data_checksum(file, "blake2b") if is_main_process() else ""

        def write(records: Iterable[Record]) -> Predictions:
            if is_table:
                return write_table(records, target, self.reader, file)
            return self.reader.write(records, folder)

        return Output(file, folder, target.name if is_table else "", partial(self._about, digest), write)

    def _about(self, digest: str) -> dict[str, Any]:
        """Return all that predictions depend on, with the file's digest: name in messages -> value."""
        weights = json.dumps(tensor_digests(self.weights()))
        computed = f"{resolved(self.precision, self.device)} on {self.device.type}"
        return {
            "model": hashlib.blake2b(weights.encode(), digest_size=16).hexdigest(),
            "input file": digest,
            "reader": json.dumps(self.reader.settings, default=str),
            "batch size": self.batch_size,
            COMPUTED: computed if self.engine is None else self.engine.about,
        }

    @explain_limits(LESS_PREDICTED)
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
        raise_any(path_problems(path=path))
        raise_any(type_problems((list, tuple, NoneType), "a list of names", metrics=metrics))
        names = self.head.metrics if metrics is None else metrics
        raise_any(problem for name in names for problem in type_problems(str, "a name", metric=name))
        if problems := metric_problems(names, self.reader.gold_names):
            raise ConfigError(problems)
        source = data_path(path)
        write = None
        if output is not None:
            target = Path(output)
            check_not_read(target, sources_of(source))
            if not is_table_name(target):
                raise StorageError(f"{target}: expected a name that ends in .jsonl, .csv or .parquet")

            def write(records: Iterator[Mapping[str, Any]], examples: Iterator[Any]) -> object:
                return write_table(records, target, self.reader, source, examples)

        return self.score(encoded(self.reader, self.reader.read_gold(source)), names, write=write)


def check_texts(texts: object) -> None:
    """Check that a value is a list of texts, or another iterable.

    Raises:
        DataError: it is a single text, or not iterable.
    """
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise DataError(
            f"predict takes a list of texts, not {str(texts)[:40]!r} ({type(texts).__name__}); "
            "for one text, write predict([text])"
        )


def _checked_table(file: Path, target: Path) -> bool:
    """Return True if the output is a table, after checking that it does not replace the input."""
    check_output_name(target)
    is_table = is_table_name(target) and not target.is_dir()
    folder = target.parent if is_table else target
    for name in [target.name] if is_table else PREDICTION_FILES:
        check_not_read(folder / name, sources_of(file))
    return is_table
