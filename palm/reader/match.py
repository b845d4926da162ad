"""The `match` reader: two texts per line, and either a label or a third text that matches less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from palm.config import FilePath
from palm.core.component import choice_problems, raise_any
from palm.core.errors import ConfigError, about
from palm.core.saved import Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import labels_of
from palm.reader.rows import Ints, OnBadRow, Rows
from palm.reader.table import TextExample, TextReader
from palm.reader.tables.columns import TableRow
from palm.reader.tables.files import TableFormat

PAIR_COLUMNS = ("token_ids", "first_segment")


@dataclass(frozen=True, slots=True)
class RankedExample(TextExample):
    """One line of a table for pairwise training.

    Args:
        text_b_neg: a text that matches `text_a` less than `text_b` does.
    """

    text_b_neg: str


@READERS.register("match")
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
    known_columns = ("label", "text_a", "text_b", "text_b_neg")
    text_columns = ("text_a", "text_b")
    optional_columns = ()
    parsed_form = "a pair of strings or {'text_a': …, 'text_b': …}"
    min_seq_len = 5

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        n_classes: int = 2,
        label_map: FilePath | dict[str, int] | None = None,
        learning_strategy: str = "pointwise",
        label_type: str = "class",
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        raise_any(choice_problems(("pointwise", "pairwise"), learning_strategy=learning_strategy))
        self.is_pairwise = learning_strategy == "pairwise"
        labels = labels_of(label_type, n_classes, label_map)
        if not self.is_pairwise:
            self.use_labels(labels)
            return
        if label_type != "class":
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

    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        if not (with_targets and self.is_pairwise):
            return super().encode(examples, with_targets)
        right = super().encode(examples, with_targets=False)
        wrong = super().encode(
            [replace(each, text_b=each.text_b_neg) for each in examples], with_targets=False
        )
        return Rows({**right.columns, **{f"wrong_{name}": wrong[name] for name in PAIR_COLUMNS}})

    def row_tokens(self, rows: Rows) -> Ints:
        wrong = rows["wrong_token_ids"].lengths if "wrong_token_ids" in rows else 0
        return rows.lengths + wrong

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        if "wrong_token_ids" not in rows:
            return super().collate(rows, indices, draw)
        chosen = rows.select(indices)
        halves = [Rows({name: chosen[start + name] for name in PAIR_COLUMNS}) for start in ("", "wrong_")]
        both = Rows.concatenate(halves)
        batch = super().collate(both, range(len(both)), draw)
        batch["is_negative"] = torch.arange(len(both)) >= len(indices)
        return batch
