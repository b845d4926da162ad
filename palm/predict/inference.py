"""Trained models, of one task and of several: from texts and files to predictions and scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from palm.backbone import Backbone
from palm.config.files import data_path
from palm.core.cache import LESS_PREDICTED, explain_limits
from palm.core.component import Component, path_problems, raise_any, type_problems, unknown
from palm.core.device import device_of, resolved
from palm.core.errors import ConfigError, DataError, PalmError, StorageError
from palm.core.group import broadcast, is_main_process, report_missing_ranks
from palm.core.io import check_not_read, checksum, is_sealed, remove
from palm.core.layers import WeightCache
from palm.core.logging import printable
from palm.core.saved import Tensors, tensor_digests
from palm.metrics import metric_problems
from palm.predict.log import COMPUTED, Output, PredictionLog
from palm.predict.onnx import OnnxEngine
from palm.reader import Predictions, Reader, Record, Rows
from palm.reader.predictions import (
    PREDICTION_FILES,
    check_output_name,
    is_table_name,
    write_table,
)
from palm.reader.rows import Column, TextFacts
from palm.reader.tables.files import data_checksum, sources_of
from palm.train import task_model
from palm.train.task_model import Chunk, Prediction, TaskModel, Work, encoded, shared_outputs


class InferenceModel(TaskModel):
    """A task's model that predicts texts and files, see `palm.load_model`.

    Attributes:
        engine: an engine that computes instead of torch, which tasks may share; None for torch.
        trained: for a best model the global `step` after which it was saved, and its `scores`.
    """

    engine: OnnxEngine | None = None
    trained: Mapping[str, Any] = {}

    def to(self, device: torch.device | str) -> InferenceModel:
        """Move to a device.

        Raises:
            PalmError: the device is not there; or not the CPU, but the engine supports nothing else.
        """
        device_of(True, torch.device(device).type)  # type: ignore[arg-type] # which checks it
        if self.engine is not None and torch.device(device).type != "cpu":
            raise PalmError(f"engine 'onnx' runs on the CPU, not on {device}; load the model without it")
        self.backbone.to(device)
        self.head.to(device)
        return self

    def outputs(self, batch: Tensors) -> Tensors:
        return super().outputs(batch) if self.engine is None else self.engine({self.task: batch})[self.task]

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
                complete. A name that ends in `.jsonl` or `.csv` writes a table instead, with the
                columns of the input followed by those of the task.
            resume: continue a stopped prediction; the result is the same as without the stop.
            shard: 'K/N' predicts part K of N, for a job of several, and keeps it in the folder; 'merge/N'
                then writes the predictions from all N parts, the same bytes as without parts.

        Raises:
            ConfigError: `shard` has another form.
            DataError: a row cannot be read; its file and line are named.
            StorageError: the directory cannot be written, or holds another stopped prediction.
        """
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
    def evaluate(self, path: str | Path, metrics: Sequence[str] | None = None) -> dict[str, float]:
        """Score the predictions of a file with labels; every example counts once.

        All ranks must call this; they divide the work.

        Args:
            path: a data file in the format of training data.
            metrics: names from `palm.metrics.METRICS` or dotted paths; None: the metrics of the head.

        Returns:
            The scores by name, those of the first metric first.

        Raises:
            ConfigError: a metric is unknown or does not fit the reader.
            DataError: a row cannot be used; its file and line are named.
        """
        raise_any(path_problems(path=path))
        raise_any(type_problems((list, tuple, NoneType), "a list of names", metrics=metrics))
        names = self.head.metrics if metrics is None else metrics
        raise_any(problem for name in names for problem in type_problems(str, "a name", metric=name))
        if problems := metric_problems(names, self.reader.gold_names):
            raise ConfigError(problems)
        return self.score(encoded(self.reader, self.reader.read_gold(data_path(path))), names)


def check_texts(texts: object) -> None:
    """Check that a value is a list of texts, or another iterable.

    Raises:
        DataError: it is a single text, or not iterable.
    """
    is_table = hasattr(texts, "columns")  # of pandas or another library, which yields its columns
    if is_table or isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise DataError(
            f"predict takes a list of texts, not {str(texts)[:40]!r} ({type(texts).__name__}); "
            "for one text, write predict([text]); for a table, give a list of texts or of dicts"
        )


def _checked_table(file: Path, target: Path) -> bool:
    """Return True if the output is a table, after checking that it does not replace the input."""
    check_output_name(target)
    is_table = is_table_name(target) and not target.is_dir()
    folder = target.parent if is_table else target
    if is_sealed(folder):
        raise StorageError(f"{folder} is a saved model or a checkpoint; write the predictions elsewhere")
    for name in [target.name] if is_table else PREDICTION_FILES:
        check_not_read(folder / name, sources_of(file))
    return is_table


ENCODED = ("token_ids", "sequence_lengths", "first_segment", "first_segments")
"""Columns of rows on which the inputs of an encoder depend."""


@dataclass(frozen=True)
class EncodedText:
    """A text, tokenized for some tasks.

    Args:
        number: its index in the list that was encoded.
        chunks: task -> its example and the rows of the example.
        num_tokens: number of tokens that the encoder reads; rows that tasks share count once.
        cut: the tasks for which the text is too long, so that its end is not read.
    """

    number: int
    chunks: Mapping[str, Chunk]
    num_tokens: int
    cut: tuple[str, ...]


class JointModel:
    """The models of several tasks, which answer together.

    Encoders with the same bits become one. Where tasks with the same encoder read the same tokens, it runs
    once per batch for all of them; a task with other inputs, such as a question about a text, has its own
    pass. The records are those of each task's own model.

    Args:
        tasks: task -> its model, on the same device as the others.

    Raises:
        ConfigError: there are no tasks.
    """

    def __init__(self, tasks: Mapping[str, InferenceModel]) -> None:
        if not tasks:
            raise ConfigError("a joint model needs the model of at least one task")
        self.tasks = dict(tasks)
        self._weight_cache = WeightCache()
        self._encodings = {task: _encoding(model.reader) for task, model in tasks.items()}
        _share_encoders(self.tasks.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.tasks.values()))})"

    def to(self, device: torch.device | str) -> JointModel:
        """Move all tasks to a device; errors as for `InferenceModel.to`."""
        for model in self.tasks.values():
            model.to(device)
        return self

    @explain_limits(LESS_PREDICTED)
    def predict(self, texts: Iterable[Any], tasks: Sequence[str] | None = None) -> list[dict[str, Record]]:
        """Predict Python values with several tasks.

        Args:
            texts: one value per example, which every chosen task accepts in its own `predict`. A dict may
                have the columns of several tasks; each reads its own.
            tasks: the tasks to predict; None for all.

        Returns:
            Per text the record of each task, as in `InferenceModel.predict`.

        Raises:
            ConfigError: an unknown task.
            DataError: not a list of texts, or a task cannot read one; task and number are named.
        """
        examples = self._parsed(texts, tasks)
        chunks = {task: encoded(self.tasks[task].reader, each) for task, each in examples.items()}
        found: dict[str, list[Record]] = {task: [] for task in chunks}
        for task, predictions in self.steps(
            {task: self.tasks[task].work(each) for task, each in chunks.items()}
        ):
            found[task] += [each.record for each in predictions]
        return [dict(zip(found, records, strict=True)) for records in zip(*found.values(), strict=True)]

    @explain_limits(LESS_PREDICTED)
    def predict_files(
        self,
        files: Mapping[str, tuple[str | Path, str | Path]],
        *,
        resume: bool = False,
        shard: str | None = None,
    ) -> dict[str, Predictions]:
        """Predict files of several tasks; the same texts in the same order are encoded once.

        Records are kept in `.predictions.resume` in each folder until all files are predicted.

        Args:
            files: task -> its data file, and where to write (see `InferenceModel.predict_file`).
            resume: continue a stopped prediction.
            shard: as for `InferenceModel.predict_file`.
        """
        outs = {task: self.tasks[task].output_of(*places) for task, places in files.items()}
        logs = {task: PredictionLog(out, task_model.CHUNK_EXAMPLES, shard) for task, out in outs.items()}
        if not next(iter(logs.values())).number:
            return broadcast(lambda: {task: log.merge() for task, log in logs.items()})
        if resume and is_main_process():
            for log in logs.values():
                log.resume()
        # Only the first rank has the logs, but all ranks skip their examples.
        done = broadcast(lambda: {task: log.num_records for task, log in logs.items()})
        work = {}
        for task, log in logs.items():
            reader = self.tasks[task].reader
            first = (log.number - 1) * log.size + done[task] * log.count
            examples = islice(reader.read(log.out.file, with_targets=False), first, None)
            chunks = encoded(reader, examples, first, step=log.count)
            work[task] = self.tasks[task].work(chunks, together=True)
        with report_missing_ranks("while predicting"), ExitStack() as stack:
            for log in logs.values() if is_main_process() else ():
                stack.enter_context(log)
            names = printable(", ".join(outs))
            hidden = None if is_main_process() else True  # None shows it in a terminal
            bar = stack.enter_context(tqdm(desc=f"predicting {names}", unit=" examples", disable=hidden))
            for task, predictions in self.steps(work):
                if predictions:
                    logs[task].append([each.record for each in predictions])
                    bar.update(len(predictions))
            return broadcast(lambda: {task: log.finish() for task, log in logs.items()})

    def predict_table(
        self, path: str | Path, table: str | Path, *, resume: bool = False, shard: str | None = None
    ) -> Predictions:
        """Predict a table with all tasks, and write its rows with a column `<task>.<field>` for each field.

        Until it is complete, the predictions of the tasks are in the folder `.<table>.tasks` beside it.

        Args:
            path: the data file, a table that every task reads.
            table: a name that ends in `.jsonl` or `.csv`.
            resume: continue a stopped prediction.
            shard: None; parts are predicted into folders.

        Raises:
            ConfigError: there is a shard.
            DataError: a row cannot be read; its file and line are named.
            StorageError: the table cannot be written, or a task has not one prediction for each row.
        """
        if shard is not None:
            raise ConfigError("--shard writes the tasks of a model into folders; give a folder as --output")
        file = data_path(path)
        target = Path(table)
        check_not_read(target, sources_of(file))
        parts = target.absolute().with_name(f".{target.name}.tasks")
        files = {task: (path, parts / task / "rows.jsonl") for task in self.tasks}
        made = self.predict_files(files, resume=resume)
        reader = self.tasks[next(iter(made))].reader

        def write() -> Predictions:
            given = {name for row in reader.rows_of(file) for name in row}
            rows = (
                dict(chain(*(_named(task, own, given) for task, own in zip(made, row, strict=True))))
                for row in zip(*made.values(), strict=True)
            )
            errors = [f"{task}.error" for task, own in made.items() if any("error" in row for row in own)]
            written = write_table(rows, target, reader, file, errors=errors)
            remove(parts)
            return written

        return broadcast(write)

    def encode(self, texts: Iterable[Any], tasks: Sequence[str] | None = None) -> list[EncodedText]:
        """Tokenize texts for some tasks; arguments and errors as for `predict`.

        One thread at a time may call this; another may compute `predict_rows` meanwhile.
        """
        made: dict[str, list[tuple[Chunk, bool]]] = {}
        parts = {}
        for task, examples in self._parsed(texts, tasks).items():
            kind = self._encodings[task]
            if kind not in made:
                made[kind] = list(_encoded_one_by_one(self.tasks[task].reader, examples))
            parts[task] = made[kind]
        texts_of = zip(*parts.values(), strict=True)
        return [
            _encoded_text(number, dict(zip(parts, of_text, strict=True)))
            for number, of_text in enumerate(texts_of)
        ]

    def predict_rows(self, rows: Sequence[EncodedText]) -> list[dict[str, Record]]:
        """Predict texts of `encode` in one batch per list of tasks and kind of input.

        Args:
            rows: the texts, which may be those of several calls.

        Returns:
            Per text the record of each of its tasks, with the index that it had in its own call, and with
            `"truncated": True` if its end was not read.
        """
        order = sorted(range(len(rows)), key=lambda k: (tuple(rows[k].chunks), k))
        found: list[dict[str, Record]] = [{} for _ in rows]
        for tasks, numbers in groupby(order, key=lambda k: tuple(rows[k].chunks)):
            places = list(numbers)
            kinds = {self._encodings[task]: task for task in tasks}
            joined = {kind: _joined([rows[k].chunks[task] for k in places]) for kind, task in kinds.items()}
            work = {t: self.tasks[t].work([joined[self._encodings[t]]], whole=True) for t in tasks}
            for task, predictions in self.steps(work):
                for place, prediction in zip(places, predictions, strict=True):
                    record = prediction.record
                    if "index" in record:
                        record["index"] = rows[place].number
                    if task in rows[place].cut:
                        record["truncated"] = True
                    found[place][task] = record
        return found

    def steps(self, work: Mapping[str, Work]) -> Iterator[tuple[str, list[Prediction]]]:
        """Compute the batches of several tasks side by side.

        Args:
            work: task -> the result of `work` of its model.

        Yields:
            A task and its predictions after the last batch of a chunk; [] on ranks other than 0.
        """
        waiting = {task: made for task, each in work.items() if (made := next(each, None)) is not None}
        while waiting:
            outputs = self.outputs(
                {task: made for task, made in waiting.items() if not isinstance(made, list)}
            )
            for task, made in list(waiting.items()):
                if isinstance(made, list):
                    yield task, made
                    following = next(work[task], None)
                else:
                    following = work[task].send(outputs[task])
                if following is None:
                    del waiting[task]
                else:
                    waiting[task] = following

    def outputs(self, batches: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Compute the outputs of tasks on their batches on the host; equal ones are encoded once."""
        passes: list[list[str]] = []
        for task, batch in batches.items():
            same = (each for each in passes if self._is_shared(each[0], batches[each[0]], task, batch))
            if (shared := next(same, None)) is None:
                passes.append([task])
            else:
                shared.append(task)
        found: dict[str, Tensors] = {}
        for tasks in passes:
            models = [self.tasks[task] for task in tasks]
            own = {task: batches[task] for task in tasks}
            if models[0].engine is not None:
                found |= models[0].engine(own)
            else:
                made = shared_outputs(models, list(own.values()), self._weight_cache)
                found |= dict(zip(tasks, made, strict=True))
        return found

    def _is_shared(self, one: str, batch: Tensors, other: str, theirs: Tensors) -> bool:
        """Check whether two tasks need the same pass of the same encoder."""
        first = self.tasks[one]
        second = self.tasks[other]
        if first.engine is not None:
            return first.engine is second.engine and first.engine.shares(batch, theirs)
        if (second.engine, first.backbone, first.precision) != (None, second.backbone, second.precision):
            return False
        return all(torch.equal(batch[name], theirs[name]) for name in first.backbone.inputs_attr)

    def _parsed(self, texts: Iterable[Any], tasks: Sequence[str] | None) -> dict[str, list[Any]]:
        """Return the examples of each chosen task."""
        chosen = list(self.tasks) if tasks is None else list(dict.fromkeys(tasks))
        for task in chosen:
            if task not in self.tasks:
                raise ConfigError(unknown("task", task, self.tasks))
        check_texts(texts)
        values = list(texts)
        readers = {task: self.tasks[task].reader for task in chosen}
        columns = {name for reader in readers.values() for name in reader.known_columns}
        examples: dict[str, list[Any]] = {}
        parsed: dict[str, list[Any]] = {}
        for task, reader in readers.items():
            kind = self._encodings[task]
            if kind in parsed:
                examples[task] = parsed[kind]
                continue
            others = columns - {*reader.known_columns}
            try:
                parsed[kind] = list(reader.parse(_without(value, others) for value in values))
            except DataError as error:
                raise DataError(f"task {task!r}: {error}") from None
            examples[task] = parsed[kind]
        return examples


def _named(task: str, row: Record, given: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a task in one of its rows, which also has those of the input."""
    for name, value in row.items():
        if name not in given:
            yield f"{task}.{name.removeprefix('predicted_')}", value


def _without(value: Any, columns: set[str]) -> Any:
    """Leave out columns that only other tasks read."""
    return {name: v for name, v in value.items() if name not in columns} if isinstance(value, dict) else value


def _share_encoders(models: Collection[InferenceModel]) -> None:
    """Replace encoders by the first one that computes the same with the same bits."""
    encoders = {id(model.backbone): model.backbone for model in models}
    if len(encoders) == 1:
        return
    first: dict[str, Backbone] = {}
    same = {key: first.setdefault(_identity(encoder), encoder) for key, encoder in encoders.items()}
    for model in models:
        model.backbone = same[id(model.backbone)]


def _identity(encoder: Backbone) -> str:
    """Return a text that is equal for encoders that compute the same on the same device."""
    device = next(encoder.parameters()).device
    return repr((_description(encoder), device, tensor_digests(encoder.state_dict())))


def _encoding(reader: Reader) -> str:
    """Return a text that is equal for readers that parse and encode values without targets alike."""
    without = type(reader).__dict__.get("target_settings", ())
    return repr((_description(reader, without), [checksum(file) for file in reader.companions]))


def _description(component: Component, without: Collection[str] = ()) -> tuple[type, dict[str, Any]]:
    """Return the class of a component and its settings, with checksums of files."""
    settings = {n: value for n, value in component.settings.items() if n not in without}
    return type(component), {n: checksum(v) if isinstance(v, Path) else v for n, v in settings.items()}


def _encoded_one_by_one(reader: Reader, examples: Sequence[Any]) -> Iterator[tuple[Chunk, bool]]:
    """Encode examples; yield each with its rows, and whether it was cut."""
    start = 0
    for example in examples:
        reader.facts = TextFacts()
        try:
            rows = reader.encode([example], with_targets=False)
            is_cut = any(count for count, _, _ in reader.facts.cut.values())
        finally:
            reader.facts = None
        yield Chunk(0, [example], rows, numbers=range(start, start + len(rows))), is_cut
        start += len(rows)


def _encoded_text(number: int, parts: Mapping[str, tuple[Chunk, bool]]) -> EncodedText:
    chunks = {task: chunk for task, (chunk, _) in parts.items()}
    rows = {  # a row of several sequences has the segments of each
        tuple(chunk.rows[name][k].tobytes() for name in ENCODED if name in chunk.rows): tokens
        for chunk in {id(chunk): chunk for chunk in chunks.values()}.values()
        for k, tokens in enumerate(chunk.rows.lengths.tolist())
    }
    cut = tuple(task for task, (_, is_cut) in parts.items() if is_cut)
    return EncodedText(number, chunks, sum(rows.values()), cut)


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    """Join chunks of one example each into one chunk."""
    rows = Rows.concatenate([chunk.rows for chunk in chunks])
    owners = np.repeat(np.arange(len(chunks)), [len(chunk.rows) for chunk in chunks])
    numbers = [number for chunk in chunks for number in chunk.numbers or ()]
    examples = [example for chunk in chunks for example in chunk.examples]
    return Chunk(0, examples, Rows({**rows.columns, "example": Column.scalar(owners)}), numbers=numbers)
