"""Base of readers whose rows have several sequences each, which become consecutive rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from palm.core.saved import Tensors, TensorSpec
from palm.reader.base import Draw
from palm.reader.labels import Label, list_in
from palm.reader.rows import SEQUENCE_ATTR, Column, Rows, offsets_of, padded, padded_batch
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


class GroupReader(TextReader):
    """Base of readers of a text with a list of other texts.

    Attributes:
        list_column: the column with the list, which is JSON in a TSV or CSV file.
        list_columns: the columns of a file in which every text of the list has its own column; the last
            ones may be empty.
    """

    list_column: ClassVar[str]
    list_columns: Sequence[str] = ()

    def use_list(self, columns: Sequence[str] | None) -> None:
        """Read the list from these columns, or by default from `list_column`."""
        self.outputs_attr = {**SEQUENCE_ATTR, "group_rows": GROUP_ROWS}
        self.list_columns = columns or ()

    def sequences_of(self, example: GroupExample, with_targets: bool) -> Iterator[tuple[str, str | None]]:  # noqa: ARG002
        """The text pair of each sequence; by default `text_a`, and `text_b` plus a text of the list."""
        start = "" if example.text_b is None else f"{example.text_b} "
        for text in example.texts:
            yield example.text_a, start + text

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        names = super().columns_of(with_targets)
        own = self.list_columns or (self.list_column,)
        return tuple(part for name in names for part in (own if name == self.list_column else (name,)))

    def texts_of(self, row: TableRow) -> list[str]:
        """The list of a row; empty if the row has none.

        Raises:
            DataError: not a list of texts.
        """
        cells = [row.cells.get(name) for name in self.list_columns]
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

    def encode(self, examples: Sequence[TextExample], with_targets: bool) -> Rows:
        sequences = []
        counts = []
        for example in examples:
            assert isinstance(example, GroupExample)
            found = list(self.sequences_of(example, with_targets))
            sequences += [TextExample(one, other, None, example.place) for one, other in found]
            counts.append(len(found))
        ends = offsets_of(counts)
        each = super().encode(sequences, with_targets=False)
        tokens = each["token_ids"]
        assert tokens.offsets is not None
        columns = {
            "token_ids": Column(tokens.values, tokens.offsets[ends]),
            "sequence_lengths": Column(each.lengths, ends),
            "first_segments": Column(each["first_segment"].values, ends),
            "example": Column.scalar(range(len(examples))),
        }
        if with_targets and self.labels is not None:
            columns[self.labels.target] = self.label_column([example.label for example in examples])
        return Rows(columns)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        chosen = rows.select(indices)
        lengths = chosen["sequence_lengths"]
        assert lengths.offsets is not None
        each = Rows(
            {
                "token_ids": Column(chosen["token_ids"].values, offsets_of(lengths.values)),
                "first_segment": Column(chosen["first_segments"].values),
            }
        )
        batch = padded_batch(each, range(len(each)), self.tokenizer.pad_id, self.task_id)
        groups = np.split(np.arange(len(each)), lengths.offsets[1:-1])
        return {**batch, "group_rows": padded(groups, -1), **self.targets(rows, indices)}
