"""What the readers of tables share: one or two texts and perhaps a label per line, one row per example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from palm.core.errors import ConfigError, DataError
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import Draw, Reader
from palm.reader.predictions import Record
from palm.reader.rows.collate import SEQUENCE_ATTR, padded_batch, row_values
from palm.reader.rows.rows import Column, Rows
from palm.reader.text.labels import Labels, RealLabels, check_labelled
from palm.reader.text.sequence import sequence_of
from palm.reader.text.subwords import load_tokenizer
from palm.reader.text.tsv import TableRow, read_table


@dataclass(frozen=True, slots=True)
class TextExample:
    """One line of a table.

    Args:
        text_a: the text.
        text_b: the second text, where there is one.
        label: its label's id, or its label where labels are real; None where it is not known or not read.
        place: `file:line`, for messages.
    """

    text_a: str
    text_b: str | None
    label: float | None
    place: str


class TextReader(Reader):
    """Base of the readers of tables; arguments as in `ClassifyReader`.

    Attributes:
        text_columns: the columns a file must have.
        optional_columns: texts that it may have.
        parsed_form: what `parse` takes, for messages.
        min_seq_len: the shortest `max_seq_len` that leaves room for text, with one separator between two.
        labels: the labels that files carry; None for a reader that makes its own targets.
        missing_labels: whether a label may be left empty.
    """

    aliases: ClassVar[dict[str, str]] = {"max_len": "max_seq_len", "max_seqlen": "max_seq_len"}
    order_2x: ClassVar[tuple[str, ...]] = (
        *("vocab_path", "max_seq_len", "tokenizer", "lang", "seed", "do_lower_case", "phase"),
    )
    text_columns: ClassVar[tuple[str, ...]] = ("text_a",)
    optional_columns: ClassVar[tuple[str, ...]] = ()
    parsed_form: ClassVar[str]
    min_seq_len: ClassVar[int] = 3
    labels: Labels | RealLabels | None = None
    missing_labels: bool = False

    def __init__(
        self, vocab_path: Path, max_seq_len: int, do_lower_case: bool, for_cn: bool, task_id: int
    ) -> None:
        self.vocab_path = Path(vocab_path)
        self.tokenizer = load_tokenizer(self.vocab_path, do_lower_case)
        least = self.min_seq_len + self.tokenizer.separators - 1
        if max_seq_len < least:
            raise ConfigError([f"max_seq_len should be at least {least}, not {max_seq_len!r}"])
        self.vocab_size = self.tokenizer.vocab_size
        self.max_seq_len = max_seq_len
        self.for_cn = for_cn
        self.task_id = task_id
        self.outputs_attr = SEQUENCE_ATTR

    def carry(self, labels: Labels | RealLabels) -> None:
        """Have files with such labels, and give them to training."""
        self.labels = labels
        self.targets_attr = {labels.target: TensorSpec(("batch",), labels.dtype)}
        self.truth_names = (labels.field,)

    def read(self, path: Path, with_targets: bool) -> Iterator[TextExample]:
        labels = self.labels if with_targets else None
        columns = self.text_columns if labels is None else ("label", *self.text_columns)

        def example(row: TableRow) -> TextExample:
            if labels is None:
                return self._example(row, None)
            is_missing = self.missing_labels and not row.cells["label"].strip()
            return self._example(
                row, NO_LABEL if is_missing else labels.value_of(row.cells["label"], row.place)
            )

        yield from self.examples_of(path, with_targets, partial(read_table, Path(path), columns), example)

    def truths(self, examples: Iterable[TextExample]) -> Iterator[Record]:
        (field,) = self.truth_names
        for example in examples:
            check_labelled(_label(example), example.place)
            yield {field: _label(example)}

    def parse(self, texts: Iterable[Any]) -> Iterator[TextExample]:
        required = set(self.text_columns)
        for number, text in enumerate(texts):
            cells = self.cells_of(text)
            if cells is None or not required <= cells.keys() <= required | set(self.optional_columns):
                raise DataError(f"text {number}: expected {self.parsed_form}, not {text!r}")
            yield self._example(TableRow(cells, f"text {number}"), None)

    def cells_of(self, text: Any) -> dict[str, Any] | None:
        """One value of `parse` as cells by column name; None where it has another form."""
        if isinstance(text, str):
            return {"text_a": text}
        return text if isinstance(text, dict) else None

    def encode(self, examples: Sequence[TextExample], with_targets: bool) -> Rows:
        second = [index for index, example in enumerate(examples) if example.text_b is not None]
        texts = [example.text_a for example in examples] + [examples[k].text_b or "" for k in second]
        ids = self.tokenizer.encode(texts)
        pairs = dict(zip(second, ids[len(examples) :], strict=True))
        sequences = [
            sequence_of(self.tokenizer, ids[index], pairs.get(index), self.max_seq_len)
            for index in range(len(examples))
        ]
        if self.facts is not None:
            self.facts.read(self.tokenizer, texts, ids)
            special = 2 + self.tokenizer.separators
            whole = (
                len(ids[k]) + (special + len(pairs[k]) if k in pairs else 2) for k in range(len(examples))
            )
            cut = sum(length > self.max_seq_len for length in whole)
            self.facts.shortened("rows", cut, len(examples), f"max_seq_len (now {self.max_seq_len})")
        columns = {
            "token_ids": Column.ragged([sequence.token_ids for sequence in sequences]),
            "first_segment": Column.scalar([sequence.first_segment for sequence in sequences]),
            "example": Column.scalar(range(len(examples))),
        }
        if with_targets and self.labels is not None:
            labels = [_label(example) for example in examples]
            dtype = np.float32 if self.labels.dtype.is_floating_point else np.int64
            columns[self.labels.target] = Column.scalar(labels, dtype)
        return Rows(columns)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        batch = padded_batch(rows, indices, self.tokenizer.pad_id, self.task_id)
        if self.labels is not None and self.labels.target in rows:
            batch[self.labels.target] = row_values(rows, self.labels.target, indices)
        return batch

    def _example(self, row: TableRow, label: float | None) -> TextExample:
        texts = {
            name: self._text(row.cells[name], name, row.place)
            for name in (*self.text_columns, *self.optional_columns)
            if name in row.cells
        }
        return TextExample(texts["text_a"], texts.get("text_b"), label, row.place)

    def _text(self, text: Any, column: str, place: str) -> str:
        if not isinstance(text, str):
            raise DataError(f"{place}: {column} should be a string, not {text!r}")
        if not text.strip():
            raise DataError(f"{place}: {column} is empty; every row needs its text")
        return text.replace(" ", "") if self.for_cn else text


def labelled_records(decoded: Sequence[Record], labels: Labels | RealLabels, first: int) -> Iterator[Record]:
    """Numbered records of decoded labels, with the label's name where it has one.

    Args:
        decoded: `label`, `logits` and `probs`, or `value`, of every example, in order.
        labels: where the names come from.
        first: the number of the first.
    """
    for index, value in enumerate(decoded, start=first):
        record = {"index": index, **value}
        if value.get("label") in labels.names:
            record["label_name"] = labels.names[value["label"]]
        yield record


def _label(example: TextExample) -> float:
    assert example.label is not None, "rows with targets are made of examples that were read with them"
    return example.label
