"""Several tasks as one model: the encoder that they share reads a text once for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from palm.backbone import Backbone
from palm.config.files import data_path
from palm.core.cache import LESS_PREDICTED, explain_limits
from palm.core.component import Component, unknown
from palm.core.errors import ConfigError, DataError
from palm.core.group import broadcast, is_main_process, report_missing_ranks
from palm.core.io import check_not_read, checksum, remove
from palm.core.layers import WeightCache
from palm.core.logging import printable
from palm.core.saved import Tensors, tensor_digests
from palm.predict.inference import InferenceModel, Output, check_texts
from palm.predict.log import PredictionLog, Shard, records_of_shard
from palm.reader import Predictions, Reader, Record, Rows
from palm.reader.predictions import SavedRecords, write_table
from palm.reader.rows import Column, TextFacts
from palm.reader.tables.files import sources_of
from palm.train import task_model
from palm.train.task_model import Chunk, Prediction, Work, encoded, shared_outputs

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
        size = task_model.CHUNK_EXAMPLES
        parts = {task: None if shard is None else Shard.of(shard, out.table) for task, out in outs.items()}
        part = next(iter(parts.values()))
        if part is not None and not part.number:
            return broadcast(lambda: {t: _merged(outs[t], own, size) for t, own in parts.items()})
        start, step = (0, 1) if part is None else (part.number - 1, part.count)
        logs = {task: PredictionLog(out.folder, out.about, size, parts[task]) for task, out in outs.items()}
        if resume and is_main_process():
            for log in logs.values():
                log.resume()
        # Only the first rank has the logs, but all ranks skip their examples.
        done = broadcast(lambda: {task: log.num_records for task, log in logs.items()})
        work = {}
        for task, out in outs.items():
            reader = self.tasks[task].reader
            first = start * size + done[task] * step
            examples = islice(reader.read(out.file, with_targets=False), first, None)
            work[task] = self.tasks[task].work(encoded(reader, examples, first, step=step), together=True)
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
            is_whole = part is None
            return broadcast(lambda: {t: _finished(out, logs[t], is_whole) for t, out in outs.items()})

    def predict_table(
        self, path: str | Path, table: str | Path, *, resume: bool = False, shard: str | None = None
    ) -> Predictions:
        """Predict a table with all tasks, and write its rows with a column `<task>.<field>` for each field.

        Until it is complete, the predictions of the tasks are in the folder `.<table>.tasks` beside it.

        Args:
            path: the data file, a table that every task reads.
            table: a name that ends in `.jsonl`, `.csv` or `.parquet`.
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
                made[kind] = _encoded_one_by_one(self.tasks[task].reader, examples)
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
            Per text the record of each of its tasks, with the index that it had in its own call.
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
                    own = {"index": rows[place].number} if "index" in record else {}
                    found[place][task] = record | own
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


def _merged(out: Output, shard: Shard | None, size: int) -> Predictions:
    """Write the predictions of a file from its shards."""
    assert shard is not None
    return shard.merge(out.folder, out.about(), size, out.write)


def _finished(out: Output, log: PredictionLog, is_whole: bool) -> Predictions:
    """Write the predictions of a file, or end the log of its shard."""
    if is_whole:
        return out.write(log.records())
    log.append([None])
    return SavedRecords(log.path, log.num_records - 1, records_of_shard)


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


def _encoded_one_by_one(reader: Reader, examples: Sequence[Any]) -> list[tuple[Chunk, bool]]:
    """Encode examples; return each with its rows, and whether it was cut."""
    rows, any_cut = _counted(reader, examples)
    bounds = np.searchsorted(rows["example"].values, np.arange(len(examples) + 1)).tolist()
    found = []
    for number, example in enumerate(examples):
        numbers = range(bounds[number], bounds[number + 1])
        chosen = rows.select(numbers)
        own = Rows({**chosen.columns, "example": Column.scalar([0] * len(numbers))})
        # Which text was cut is found only if one was, which is rare.
        is_cut = any_cut and _counted(reader, [example])[1]
        found.append((Chunk(0, [example], own, numbers=numbers), is_cut))
    return found


def _counted(reader: Reader, examples: Sequence[Any]) -> tuple[Rows, bool]:
    """Encode examples; return True if any was cut."""
    reader.facts = TextFacts()
    try:
        rows = reader.encode(examples, with_targets=False)
        return rows, any(count for count, _, _ in reader.facts.cut.values())
    finally:
        reader.facts = None


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
