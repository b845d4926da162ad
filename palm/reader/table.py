"""Readers of tables with one or two texts per line, and a label or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import ConfigError, DataError, about
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import (
    Label,
    Labels,
    LabelType,
    RealLabels,
    check_labelled,
    is_list,
    labels_of,
    list_in,
)
from palm.reader.predictions import Record
from palm.reader.rows import Column, Rows, grouped, sequences_in
from palm.reader.tables.columns import TableRow, cell_text, cut, is_missing
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
        target_columns: the columns that files with labels must also have.
        labels: the labels in the files; None for a reader that creates its own targets.
    """

    known_columns: ClassVar[tuple[str, ...]] = ("label", "text_a", "text_b")
    text_columns: ClassVar[tuple[str, ...]] = ("text_a",)
    optional_columns: ClassVar[tuple[str, ...]] = ("text_b",)
    target_columns: Sequence[str] = ("label",)
    parsed_form: ClassVar[str] = "a string or {'text_a': …} (and 'text_b')"
    labels: Labels | RealLabels | None = None

    def use_labels(self, labels: Labels | RealLabels) -> None:
        """Read these labels from files and use them as targets."""
        self.labels = labels
        self.targets_attr = {labels.target: TensorSpec(labels.shape, labels.dtype)}
        self.gold_names = (labels.field,)

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        is_labelled = with_targets and self.labels is not None
        return (*self.target_columns, *self.text_columns) if is_labelled else self.text_columns

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
        return {field: label}

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

    def sequences_of(self, example: Any, with_targets: bool) -> list[tuple[str, str | None]]:  # noqa: ARG002
        """The text, or pair of texts, of each of an example's sequences; by default there is one."""
        return [(example.text_a, example.text_b)]

    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        sequences = [self.sequences_of(example, with_targets) for example in examples]
        rows = self._encoded([pair for own in sequences for pair in own])
        if self.is_grouped(examples, with_targets):
            rows = grouped(rows, list(map(len, sequences)))
        if with_targets and self.labels is not None:
            rows.columns[self.labels.target] = self.label_column([_label(example) for example in examples])
        return rows

    def is_grouped(self, examples: Sequence[Any], with_targets: bool) -> bool:  # noqa: ARG002
        """Check whether an example may have several sequences, which become one row; by default, not."""
        return False

    def _encoded(self, sequences: Sequence[tuple[str, str | None]]) -> Rows:
        """One row for each text or pair of texts."""
        most = self.max_seq_len
        firsts = self.tokenizer.encode([first for first, _ in sequences], most)
        given = {k: second for k, (_, second) in enumerate(sequences) if second is not None}
        seconds = dict(zip(given, self.tokenizer.encode(list(given.values()), most), strict=True))
        rows = [self.tokenizer.sequence(first, seconds.get(k), most) for k, first in enumerate(firsts)]
        if self.facts is not None:
            read = [*(first for first, _ in sequences), *given.values()]
            self.facts.add_texts(self.tokenizer, read, [*firsts, *seconds.values()])
            num_cut = sum(is_cut for _, _, is_cut in rows)
            self.facts.add_cut("rows", num_cut, len(rows), f"max_seq_len (now {most})")
        columns = {
            "token_ids": Column.ragged([ids for ids, _, _ in rows]),
            "first_segment": Column.scalar([first_segment for _, first_segment, _ in rows]),
            "example": Column.scalar(range(len(rows))),
        }
        return Rows(columns)

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
    if example.label is None:
        raise DataError(
            f"{example.place}: no label; rows with targets need examples that were read with them"
        )
    return example.label


@READERS.register("cls")
@dataclass(eq=False, repr=False, kw_only=True)
class ClassifyReader(TextReader):
    """Reader of tables with the columns `label` and `text_a`, and optionally `text_b`.

    A row is `[CLS] text_a [SEP]` or `[CLS] text_a [SEP] text_b [SEP]`, cut to `max_seq_len`. A
    record is `{"index": 0, "label": 3, "logits": [...], "probs": [...]}`, with `label_name` if there is
    a `label_map`; for real labels it is `{"index": 0, "value": 3.2}`.

    Args:
        n_classes: number of labels, against which the file's labels are checked; not used for real labels.
        label_map: label name -> id, or a JSON file with it, if labels are written as names.
        label_type: 'class', 'real' for real numbers, or 'count' for whole numbers of 0 or more.
        missing_labels: whether a training row may have no class label; the row is then used only for tasks
            that share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `cls`.
    """

    cacheable = True
    target_settings = ("n_classes", "label_map", "label_type", "missing_labels", "columns")

    n_classes: int | None = None
    label_map: FilePath | dict[str, int] | None = None
    label_type: LabelType = "class"
    missing_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.missing_labels and self.label_type != "class":
            raise ConfigError(
                about("missing_labels", f": a {self.label_type} label cannot be missing; set it to False")
            )
        self.use_labels(labels_of(self.label_type, self.n_classes, self.label_map))


@dataclass(frozen=True, slots=True)
class RankedExample(TextExample):
    """One line of a table for pairwise training.

    Args:
        text_b_neg: a text that matches `text_a` less than `text_b` does.
    """

    text_b_neg: str


@READERS.register("match")
@dataclass(eq=False, repr=False, kw_only=True)
class MatchReader(TextReader):
    """Reader of tables with the columns `label`, `text_a` and `text_b`.

    A row is `[CLS] text_a [SEP] text_b [SEP]`; if both do not fit, the longer one loses its last
    token until they do. Records are those of `ClassifyReader`.

    In pairwise training, a file has `text_a`, `text_b` and, instead of a label, `text_b_neg`, which
    matches `text_a` less. A training batch has two rows per example, first all pairs with `text_b`, then
    those with `text_b_neg`, marked by `is_negative`. A record is `{"index": 0, "probs": 0.7}`.

    Args:
        n_classes: number of labels; 0 for no match and 1 for a match. Not used for real labels.
        label_map: label name -> id, or a JSON file with it, if labels are written as names.
        learning_strategy: 'pointwise' or 'pairwise'.
        label_type: 'class', 'real' for real numbers, such as similarities, or 'count' for whole numbers of 0
            or more.

    Raises:
        ConfigError: a setting out of its range, real labels in pairwise training, or a
            label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `match`; pairwise PaddlePALM 2.0.2, `MatchReader`.
    """

    cacheable = True
    target_settings = ("n_classes", "label_map", "label_type", "columns")
    known_columns = ("label", "text_a", "text_b", "text_b_neg")
    text_columns = ("text_a", "text_b")
    optional_columns = ()
    parsed_form = "a pair of strings or {'text_a': …, 'text_b': …}"
    min_seq_len = 5

    n_classes: int = 2
    label_map: FilePath | dict[str, int] | None = None
    learning_strategy: Literal["pointwise", "pairwise"] = "pointwise"
    label_type: LabelType = "class"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_pairwise = self.learning_strategy == "pairwise"
        labels = labels_of(self.label_type, self.n_classes, self.label_map)
        if not self.is_pairwise:
            self.use_labels(labels)
            return
        if self.label_type != "class":
            raise ConfigError(
                about("label_type", ": pairwise training has no labels; remove it, or set pointwise")
            )
        self.targets_attr = {"is_negative": TensorSpec(("batch",), torch.bool)}
        self.gold_names = ("is_right",)

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        columns = super().columns_of(with_targets)
        return (*columns, "text_b_neg") if with_targets and self.is_pairwise else columns

    def example_of(self, row: TableRow, with_targets: bool) -> Any:
        example = super().example_of(row, with_targets)
        if not (with_targets and self.is_pairwise):
            return example
        wrong = self._text(row.cells["text_b_neg"], "text_b_neg", row.place)
        return RankedExample(example.text_a, example.text_b, None, row.place, wrong)

    def read_gold(self, path: Path) -> Iterator[TextExample]:
        """The examples; a pairwise one becomes its right text, labelled 1, and its wrong one, labelled 0."""
        for example in super().read_gold(path):
            if isinstance(example, RankedExample):
                yield TextExample(example.text_a, example.text_b, 1, example.place)
                yield TextExample(example.text_a, example.text_b_neg, 0, example.place)
            else:
                yield example

    def sequences_of(self, example: Any, with_targets: bool) -> list[tuple[str, str | None]]:
        wrong = [(example.text_a, example.text_b_neg)] if isinstance(example, RankedExample) else []
        return super().sequences_of(example, with_targets) + wrong

    def is_grouped(self, examples: Sequence[Any], with_targets: bool) -> bool:
        # An evaluation scores the right and the wrong text of a pair by themselves.
        return isinstance(examples[0], RankedExample) if examples else with_targets and self.is_pairwise

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        if "sequence_lengths" not in rows:
            return super().collate(rows, indices, draw)
        both, pairs = sequences_in(rows, indices)
        order = np.transpose(pairs).ravel().tolist()
        batch = super().collate(both, order, draw)
        batch["is_negative"] = torch.arange(len(order)) >= len(indices)
        return batch


class LabelSets(Labels):
    """The labels of a task in which a text has any number of labels.

    The value of a text is the list of its label ids; -1 - id stands for a label that is unknown for the text.

    Args:
        n_classes: the number of labels; None for as many as `label_map` has.
        label_map: see `Labels`.

    Raises:
        ConfigError: see `Labels`, or the number of labels is unknown.
    """

    target = "label_set"
    dtype = torch.float
    field = "label_set"

    def __init__(self, n_classes: int | None, label_map: Path | str | Mapping[str, int] | None) -> None:
        super().__init__(n_classes, label_map)
        self.shape = ("batch", self.count)
        self.unknown = [-1 - label for label in range(self.count)]


@READERS.register("multi_label")
@dataclass(eq=False, repr=False, kw_only=True)
class MultiLabelReader(TextReader):
    """Reader of tables with the columns `label` and `text_a`, and optionally `text_b`.

    `label` contains all labels of the text, as a list (JSON in a TSV or CSV file) or with separators; `[]`
    means that it has none, and an empty cell that they are unknown. Alternatively, every label has its own
    column of 0 and 1. A record is `{"index": 0, "labels": [0, 3], "logits": [...], "probs": [...]}`, with
    `label_names` if there are names.

    Args:
        n_classes: number of labels, against which the file's labels are checked.
        label_map: label name -> id, or a JSON file with it, if labels are written as names.
        label_columns: one column for each label, in the order of their ids.
        label_separator: the text between two labels of a cell that is not a list.
        missing_labels: whether labels of a training row may be unknown: null, or an empty cell of the label's
            column; the row then trains the other labels, or only tasks that share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.
    """

    cacheable = True
    target_settings = (
        "n_classes",
        "label_map",
        "label_columns",
        "label_separator",
        "missing_labels",
        "columns",
    )

    n_classes: int | None = None
    label_map: FilePath | dict[str, int] | None = None
    label_columns: list[str] | None = None
    label_separator: str = ","
    missing_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_columns and self.label_map is not None:
            raise ConfigError(
                about("label_map", ": the label_columns already name the labels; remove one of them")
            )
        if not self.label_separator:
            raise ConfigError(about("label_separator", " is empty; set it to the text between two labels"))
        label_map = self.label_map
        if self.label_columns:
            label_map = {name: label for label, name in enumerate(self.label_columns)}
            self.target_columns = self.label_columns
        self.sets = LabelSets(self.n_classes, label_map)
        self.use_labels(self.sets)

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> list[int] | None:  # noqa: ARG002
        if self.label_columns:
            is_empty = all(is_missing(row.cells[name]) for name in self.label_columns)
            return None if is_empty else [*self._answers(row)]
        cell = row.cells["label"]
        place = row.place
        if is_missing(cell) and cell != []:
            return None
        if isinstance(cell, str) and not is_list(cell):
            place = f"{place}: {cut(cell)!r}" if self.label_separator in cell else place
            cell = [each.strip() for each in cell.split(self.label_separator) if each.strip()]
        items = list_in(cell, row.place, "label", "labels")
        found = sorted(self.sets.value_of(item, place) for item in items)
        if len({*found}) < len(found):
            raise DataError(
                f"{row.place}: {cut(repr(items))} has a label twice"
                + (" and looks one-hot" if {*found} <= {0, 1} else "")
                + "; list each label of the text once; a 0 or 1 for every label needs label_columns"
            )
        return found

    def _answers(self, row: TableRow) -> Iterator[int]:
        """The ids of the labels whose columns are 1, and -1 - id for the unknown ones."""
        for label, name in enumerate(self.target_columns):
            text = cell_text(row.cells[name]).strip().lower()
            if text in ("1", "true"):
                yield label
            elif not text and self.missing_labels:
                yield -1 - label
            elif text not in ("0", "false"):
                raise DataError(f"{row.place}: {name} should be 0 or 1, not {row.cells[name]!r}")

    def label_column(self, values: Sequence[Any]) -> Column:
        sets = np.zeros((len(values), self.sets.count), dtype=np.int8)
        for row, ids in zip(sets, values, strict=True):
            row[[label for label in ids if label >= 0]] = 1
            row[[-1 - label for label in ids if label < 0]] = NO_LABEL
        return Column.ragged([*sets], np.int8)

    def record(self, example: TextExample, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:
        record = super().record(example, rows, places, decoded)
        names = self.sets.names
        named = [names.get(label, str(label)) for label in record["labels"]]
        return {**record, "label_names": named} if names else record
