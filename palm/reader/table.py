"""Base of the readers of tables with one or two texts, and optionally a label, per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from palm.core.errors import DataError
from palm.core.saved import TensorSpec
from palm.reader.labels import Label, Labels, RealLabels, SoftLabels, check_labelled
from palm.reader.predictions import Record
from palm.reader.rows import Column, Rows, TextFacts
from palm.reader.tables.columns import TableRow, is_missing
from palm.reader.tokenizing import TokenizingReader


@dataclass(frozen=True, slots=True)
class TextExample:
    """One line of a table.

    Args:
        text_a: the text.
        text_b: the second text; None if there is none.
        label: the label of the file; None if unknown or not read.
        place: `file:line`, for messages.
    """

    text_a: str
    text_b: str | None
    label: Label | None
    place: str


class TextReader(TokenizingReader):
    """Base of the readers of tables.

    Attributes:
        text_columns: the columns that every file must have.
        parsed_form: the values that `parse` accepts, for messages.
        label_columns: the columns that files with labels must also have.
        labels: the labels in the files; None for a reader that creates its own targets.
    """

    known_columns: ClassVar[tuple[str, ...]] = ("label", "text_a", "text_b")
    text_columns: ClassVar[tuple[str, ...]] = ("text_a",)
    optional_columns: ClassVar[tuple[str, ...]] = ("text_b",)
    label_columns: Sequence[str] = ("label",)
    parsed_form: ClassVar[str] = "a string or {'text_a': …} (and 'text_b')"
    labels: Labels | RealLabels | None = None

    def use_labels(self, labels: Labels | RealLabels) -> None:
        """Read these labels from files and use them as targets."""
        self.labels = labels
        self.targets_attr = {labels.target: TensorSpec(labels.shape, labels.dtype)}
        self.gold_names = (labels.field,)

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        is_labelled = with_targets and self.labels is not None
        return (*self.label_columns, *self.text_columns) if is_labelled else self.text_columns

    def example_of(self, row: TableRow, with_targets: bool) -> Any:
        if self.labels is None or not with_targets:
            return self._example(row, None)
        label = self.label_of(row, self.labels)
        if label is None and self.missing_labels:
            label = self.labels.unknown
        return None if label is None else self._example(row, label)

    def is_labelled(self, example: TextExample) -> bool:
        return self.labels is None or example.label != self.labels.unknown

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> Label | None:
        """The label of a row; None if it has none.

        Raises:
            DataError: not a label of the task.
        """
        return None if is_missing(cell := row.cells["label"]) else labels.value_of(cell, row.place)

    def label_column(self, values: Sequence[Any]) -> Column:
        """The column of rows for these labels."""
        assert self.labels is not None
        dtype = np.float32 if self.labels.dtype.is_floating_point else np.int64
        is_scalar = len(self.labels.shape) == 1
        return Column.scalar(values, dtype) if is_scalar else Column.ragged(values, dtype)

    def gold(self, example: TextExample) -> Record:
        (field,) = self.gold_names
        label = _label(example)
        check_labelled(label, example.place)
        return {field: int(np.argmax(label)) if isinstance(self.labels, SoftLabels) else label}

    def parse(self, texts: Iterable[Any]) -> Iterator[TextExample]:
        required = set(self.text_columns)
        for number, text in enumerate(texts):
            cells = self.cells_of(text)
            if cells is None or not required <= cells.keys() <= required | set(self.optional_columns):
                raise DataError(f"text {number}: expected {self.parsed_form}, not {text!r}")
            yield self._example(TableRow(cells, f"text {number}"), None)

    def cells_of(self, text: Any) -> dict[str, Any] | None:
        """The cells of one value of `parse` by column name; None if it has another form."""
        if isinstance(text, str) and self.text_columns == ("text_a",):
            return {"text_a": text}
        if isinstance(text, (tuple, list)) and len(text) == len(self.text_columns) == 2:
            return dict(zip(self.text_columns, text, strict=True))
        return text if isinstance(text, dict) else None

    def encode(self, examples: Sequence[TextExample], with_targets: bool) -> Rows:
        most = self.max_seq_len
        firsts = self.tokenizer.encode([example.text_a for example in examples], most)
        pairs = [k for k, example in enumerate(examples) if example.text_b is not None]
        texts = self.tokenizer.encode([examples[k].text_b or "" for k in pairs], most)
        seconds = dict(zip(pairs, texts, strict=True))
        rows = [
            self.tokenizer.sequence(first, seconds.get(k), self.max_seq_len) for k, first in enumerate(firsts)
        ]
        if self.facts is not None:
            self._count(self.facts, examples, firsts, seconds)
        columns = {
            "token_ids": Column.ragged([ids for ids, _ in rows]),
            "first_segment": Column.scalar([first_segment for _, first_segment in rows]),
            "example": Column.scalar(range(len(examples))),
        }
        if with_targets and self.labels is not None:
            columns[self.labels.target] = self.label_column([_label(example) for example in examples])
        return Rows(columns)

    def _count(
        self,
        facts: TextFacts,
        examples: Sequence[TextExample],
        firsts: Sequence[list[int]],
        seconds: Mapping[int, list[int]],
    ) -> None:
        """Add these texts to the facts."""
        texts = [example.text_a for example in examples] + [examples[k].text_b or "" for k in seconds]
        facts.add_texts(self.tokenizer, texts, [*firsts, *seconds.values()])
        special = 2 + self.tokenizer.separators
        cut = sum(
            len(first) + (special + len(seconds[k]) if k in seconds else 2) > self.max_seq_len
            for k, first in enumerate(firsts)
        )
        facts.add_cut("rows", cut, len(examples), f"max_seq_len (now {self.max_seq_len})")

    def record(self, example: TextExample, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:
        record = super().record(example, rows, places, decoded)
        names = {} if self.labels is None else self.labels.names
        is_named = record.get("label") in names
        return {**record, "label_name": names[record["label"]]} if is_named else record

    def _example(self, row: TableRow, label: Label | None) -> TextExample:
        texts = {
            name: self._text(row.cells[name], name, row.place)
            for name in (*self.text_columns, *self.optional_columns)
            if name in row.cells
        }
        return TextExample(texts["text_a"], texts.get("text_b"), label, row.place)

    def _text(self, text: Any, column: str, place: str) -> str:
        if isinstance(text, list) and all(isinstance(word, str) for word in text):
            text = " ".join(text)
        if not isinstance(text, str):
            raise DataError(f"{place}: {column} should be a string, not {text!r}")
        if not text.strip():
            raise DataError(f"{place}: {column} is empty; every row needs a text")
        return text.replace(" ", "") if self.for_cn else text


def _label(example: TextExample) -> Label:
    assert example.label is not None, "rows with targets need examples that were read with targets"
    return example.label
