"""Readers whose rows have several sequences each, which become consecutive rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from palm.config import FilePath
from palm.core.errors import DataError
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import Label, Labels, RealLabels, list_in
from palm.reader.predictions import Record
from palm.reader.rows import SEQUENCE_ATTR, Rows, padded, padded_batch, sequences_in
from palm.reader.table import TextExample, TextReader
from palm.reader.tables.columns import TableRow, is_missing

GROUP_ROWS = TensorSpec(("examples", "texts"), torch.long)
"""The rows of a batch that belong to each example, padded with -1."""


@dataclass(frozen=True, slots=True)
class GroupExample(TextExample):
    """One line of a table with a list of texts.

    Args:
        texts: the list.
    """

    texts: list[str]


@dataclass(eq=False, repr=False, kw_only=True)
class GroupReader(TextReader):
    """Base of readers of a text with a list of other texts.

    Args:
        list_columns: the columns of the listed texts (choices, candidates, negatives) if each has its own;
            the last ones may be empty.

    Attributes:
        list_column: the column with the list, which is JSON in a TSV or CSV file.
    """

    list_columns: list[str] | None = None

    list_column: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outputs_attr = {**SEQUENCE_ATTR, "group_rows": GROUP_ROWS}

    def sequences_of(self, example: GroupExample, with_targets: bool) -> list[tuple[str, str | None]]:  # noqa: ARG002
        """The text pair of each sequence; by default `text_a`, and `text_b` plus a text of the list."""
        start = "" if example.text_b is None else f"{example.text_b} "
        return [(example.text_a, start + text) for text in example.texts]

    def is_grouped(self, examples: Sequence[GroupExample], with_targets: bool) -> bool:  # noqa: ARG002
        return True

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        names = super().columns_of(with_targets)
        own = self.list_columns or (self.list_column,)
        return tuple(part for name in names for part in (own if name == self.list_column else (name,)))

    def texts_of(self, row: TableRow) -> list[str]:
        """The list of a row; empty if the row has none.

        Raises:
            DataError: not a list of texts.
        """
        cells = [row.cells.get(name) for name in self.list_columns or ()]
        if self.list_column in row.cells:
            cell = row.cells[self.list_column]
            cells = [] if is_missing(cell) else list_in(cell, row.place, self.list_column, "texts")
        while cells and is_missing(cells[-1]):
            cells = cells[:-1]
        return [self._text(cell, f"{self.list_column}[{k}]", row.place) for k, cell in enumerate(cells)]

    def _example(self, row: TableRow, label: Label | None) -> GroupExample:
        texts = {name: cell for name, cell in row.cells.items() if name != self.list_column}
        plain = super()._example(TableRow(texts, row.place), label)
        return GroupExample(plain.text_a, plain.text_b, plain.label, plain.place, self.texts_of(row))

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        each, groups = sequences_in(rows, indices)
        batch = padded_batch(each, range(len(each)), self.tokenizer.pad_id, self.task_id)
        return {**batch, "group_rows": padded(groups, -1), **self.targets(rows, indices)}


@READERS.register("multiple_choice")
@dataclass(eq=False, repr=False, kw_only=True)
class MultipleChoiceReader(GroupReader):
    """Reader of tables with the columns `label`, `text_a` and `choices`, and optionally `text_b`.

    Each of the two or more choices is a sequence `[CLS] text_a [SEP] choice [SEP]`; `text_b`, a question
    about a passage or the start of a sentence, is put before the choice. A record is
    `{"index": 0, "label": 2, "logits": [...], "probs": [...]}`, with `label_name` if there is a `label_map`.

    Args:
        label_map: name -> index of the choice from 0, if labels are written as names, such as letters.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary or label_map cannot be read.

    Source: Zellers et al., 2018, "SWAG", as its authors encode it for BERT.
    """

    cacheable = True
    known_columns = ("label", "text_a", "text_b", "choices")
    text_columns = ("text_a", "choices")
    list_column = "choices"
    parsed_form: ClassVar[str] = "(text, [choice, …]) or {'text_a': …, 'choices': […]} (and 'text_b')"
    min_seq_len = 5

    label_map: FilePath | dict[str, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.use_labels(Labels(None, self.label_map))

    def _example(self, row: TableRow, label: Label | None) -> GroupExample:
        example = super()._example(row, label)
        count = len(example.texts)
        if count < 2:
            raise DataError(f"{row.place}: choices should have at least 2 texts, not {count}")
        if isinstance(label, int) and label >= count:
            raise DataError(
                f"{row.place}: the label {label} should be the index of a choice, from 0 to {count - 1}"
            )
        return example


class Relevance(RealLabels):
    """The relevance of each candidate: a number of 0 or more; a higher one should be ranked higher."""

    target = "relevance"
    shape = ("examples", "texts")
    field = "relevance"


@READERS.register("ranking")
class RankingReader(GroupReader):
    """Reader of tables with the columns `label`, `text_a` (the query) and `candidates`.

    Each candidate is a sequence `[CLS] text_a [SEP] candidate [SEP]`. `label` is the list of their
    relevances, numbers of 0 or more. A record is `{"index": 0, "ranking": [2, 0, 1], "scores": [...]}`: the
    indices of the candidates, best first, and their scores in the order of the file.

    Args:
    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary cannot be read.
    """

    cacheable = True
    known_columns = ("label", "text_a", "candidates")
    text_columns = ("text_a", "candidates")
    optional_columns = ()
    list_column = "candidates"
    parsed_form: ClassVar[str] = "(query, [candidate, …]) or {'text_a': …, 'candidates': […]}"
    min_seq_len = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.use_labels(Relevance())

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> Label | None:
        cell = row.cells["label"]
        if is_missing(cell) and cell != []:
            return None
        found = [labels.value_of(each, row.place) for each in list_in(cell, row.place, "label", "numbers")]
        if min(found, default=0) < 0:
            raise DataError(f"{row.place}: a relevance should be 0 or more, not {min(found)!r}")
        return found

    def _example(self, row: TableRow, label: Label | None) -> GroupExample:
        example = super()._example(row, label)
        if not example.texts:
            raise DataError(f"{row.place}: candidates is empty; every row needs at least one")
        if isinstance(label, list) and len(label) != len(example.texts):
            raise DataError(
                f"{row.place}: label has {len(label)} numbers for {len(example.texts)} candidates"
            )
        return example

    def targets(self, rows: Rows, indices: Sequence[int]) -> Tensors:
        if "relevance" not in rows:
            return {}
        relevance = padded([rows["relevance"][index] for index in indices], NO_LABEL)
        return {"relevance": relevance.to(torch.float)}


@READERS.register("embedding")
@dataclass(eq=False, repr=False, kw_only=True)
class EmbeddingReader(GroupReader):
    """Reader of tables with the columns `text_a` and `text_b`, a matching pair, and optionally `negatives`.

    Every text is a separate sequence `[CLS] text [SEP]`; `negatives`, which do not match `text_a`, are only
    used in training. A numeric label says how similar the two texts are. For embedding texts, `text_a` is
    enough. A record is `{"index": 0, "embedding": [...]}`; with a `text_b`, also its `embedding_b` and
    `value`, the cosine of the two.

    Args:
        label_type: absent for matching pairs; 'real' for a column `label` with numbers from -1 to 1.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary cannot be read.
    """

    cacheable = True
    known_columns = ("label", "text_a", "text_b", "negatives")
    optional_columns = ("text_b", "negatives")
    list_column = "negatives"
    parsed_form: ClassVar[str] = "a text or {'text_a': …} (and 'text_b')"

    label_type: Literal["real"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets_attr = {}
        self.gold_names = ("pair",)
        self.target_columns = ()
        if self.label_type is not None:
            self.target_columns = ("label",)
            self.use_labels(RealLabels())

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> Label | None:
        value = super().label_of(row, labels)
        if isinstance(value, float) and abs(value) > 1:
            raise DataError(f"{row.place}: the label {value!r} should be from -1 to 1, as a cosine")
        return value

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        trained = ("text_b", *(self.list_columns or ())) if with_targets else ()
        return (*super().columns_of(with_targets), *trained)

    def sequences_of(self, example: GroupExample, with_targets: bool) -> list[tuple[str, str | None]]:
        others = [] if example.text_b is None else [example.text_b]
        return [(text, None) for text in (example.text_a, *others, *(example.texts if with_targets else ()))]

    def gold(self, example: TextExample) -> Record:
        return {"pair": (example.text_a, example.text_b)} if self.labels is None else super().gold(example)
