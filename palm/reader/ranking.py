"""The `ranking` reader: a query, its candidates and the relevance of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from palm.config import FilePath
from palm.core.errors import DataError
from palm.core.saved import NO_LABEL, Tensors
from palm.reader.base import READERS
from palm.reader.groups import GroupExample, GroupReader
from palm.reader.labels import Label, Labels, RealLabels, list_in
from palm.reader.rows import OnBadRow, Rows, padded
from palm.reader.tables.columns import TableRow, is_missing
from palm.reader.tables.files import TableFormat


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
        candidate_columns: the columns of the candidates if each has its own column.

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

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        candidate_columns: list[str] | None = None,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        self.use_list(candidate_columns)
        self.use_labels(Relevance())

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> Label | None:
        cell = row.cells["label"]
        if is_missing(cell):
            return None
        found = [labels.value_of(each, row.place) for each in list_in(cell, row.place, "label", "numbers")]
        if min(found) < 0:
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
