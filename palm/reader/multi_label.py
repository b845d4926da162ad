"""The `multi_label` reader: one or two texts per line with any number of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import ConfigError, DataError, about
from palm.core.saved import NO_LABEL
from palm.reader.base import READERS
from palm.reader.labels import Labels, RealLabels, is_list, list_in
from palm.reader.predictions import Record
from palm.reader.rows import Column, OnBadRow, Rows
from palm.reader.table import TextExample, TextReader
from palm.reader.tables.columns import TableRow, cell_text, cut, is_missing
from palm.reader.tables.files import TableFormat


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

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        n_classes: int | None = None,
        label_map: FilePath | dict[str, int] | None = None,
        label_columns: list[str] | None = None,
        label_separator: str = ",",
        missing_labels: bool = False,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        if label_columns and label_map is not None:
            raise ConfigError(
                about("label_map", ": the label_columns already name the labels; remove one of them")
            )
        if not label_separator:
            raise ConfigError(about("label_separator", " is empty; set it to the text between two labels"))
        self.label_separator = label_separator
        self.missing_labels = missing_labels
        self.has_columns = bool(label_columns)
        if label_columns:
            label_map = {name: label for label, name in enumerate(label_columns)}
            self.label_columns = label_columns
        self.sets = LabelSets(n_classes, label_map)
        self.use_labels(self.sets)

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> list[int] | None:  # noqa: ARG002
        if self.has_columns:
            is_empty = all(is_missing(row.cells[name]) for name in self.label_columns)
            return None if is_empty else [*self._answers(row)]
        cell = row.cells["label"]
        if is_missing(cell) and cell != []:
            return None
        if isinstance(cell, str) and not is_list(cell):
            cell = [each.strip() for each in cell.split(self.label_separator) if each.strip()]
        items = list_in(cell, row.place, "label", "labels")
        found = sorted(self.sets.value_of(item, row.place) for item in items)
        if len({*found}) < len(found):
            raise DataError(
                f"{row.place}: {cut(repr(items))} has a label twice"
                + (" and looks one-hot" if {*found} <= {0, 1} else "")
                + "; list each label of the text once; a 0 or 1 for every label needs label_columns"
            )
        return found

    def _answers(self, row: TableRow) -> Iterator[int]:
        """The ids of the labels whose columns are 1, and -1 - id for the unknown ones."""
        for label, name in enumerate(self.label_columns):
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
