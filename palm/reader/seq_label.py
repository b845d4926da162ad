"""The `seq_label` reader: a text per line, and a label for each of its words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import ConfigError, DataError, about, shortened
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import Labels, check_labelled
from palm.reader.predictions import Record
from palm.reader.rows import SEQUENCE_ATTR, OnBadRow, Rows
from palm.reader.tables.columns import TableRow, cut, is_missing
from palm.reader.tables.files import TableFormat
from palm.reader.words import WORD, WordReader, is_unspaced, split_words, words_of


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One line of a table.

    Args:
        words: the text's words.
        labels: the label ids of the words; None if unknown or not read.
        place: `file:line`, for messages.
    """

    words: list[str]
    labels: list[int] | None
    place: str


@READERS.register("seq_label")
class SequenceLabelReader(WordReader):
    """Reader of tables with the columns `text_a` and `label`, a label for every word.

    Words and labels are separated by spaces or by U+0002. A row is `[CLS] text_a [SEP]`, with each word split
    into subwords separately; a text that does not fit continues in further rows, so no word is lost. The
    first subword of a word, marked by `word_mask`, has its label; `label_ids` is -100 elsewhere. A record is
    `{"index": 0, "labels": ["O", "B-city", ...]}`, with one label per word.

    Args:
        label_map: label name -> id, or a JSON file with it.
        for_cn: make every Chinese character of a text without spaces a word; spaces separate the words of
            other texts.
        n_classes: number of labels; the `label_map` must name all of them.
        missing_labels: whether a training row may have no labels; the row is then used only for tasks that
            share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 2.0.2, `SequenceLabelReader`.
    """

    cacheable = True
    known_columns = ("label", "text_a")

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        label_map: FilePath | dict[str, int],
        *,
        n_classes: int | None = None,
        missing_labels: bool = False,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        self.missing_labels = missing_labels
        self.labels = Labels(n_classes, label_map)
        if unnamed := [number for number in range(n_classes or 0) if number not in self.labels.names]:
            ids = ", ".join(shortened([*map(str, unnamed)], 10))
            raise ConfigError(
                about(
                    "label_map",
                    f": no label has the id {ids}; with n_classes {n_classes}, every id needs a name",
                )
            )
        self.outputs_attr = {**SEQUENCE_ATTR, "word_mask": TensorSpec(("batch", "seq"), torch.bool)}
        self.targets_attr = {"label_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.gold_names = ("labels",)

    def example_of(self, row: TableRow, with_targets: bool) -> TaggedExample | None:
        words = self._words(row, with_targets)
        if not with_targets:
            return TaggedExample(words, None, row.place)
        if not is_missing(cell := row.cells["label"]):
            return TaggedExample(words, self._labels(cell, words, row.place), row.place)
        return TaggedExample(words, [NO_LABEL] * len(words), row.place) if self.missing_labels else None

    def is_labelled(self, example: TaggedExample) -> bool:
        return example.labels is not None and NO_LABEL not in example.labels

    def _words(self, row: TableRow, with_targets: bool) -> list[str]:
        text = row.cells["text_a"]
        if isinstance(text, str) and is_unspaced(text):
            if self.for_cn:
                text = WORD.findall(text)
            elif not with_targets:
                raise DataError(
                    f"{row.place}: {cut(text, 20)!r} has no spaces and would be one word; give a list of its "
                    "words or characters, or set for_cn: True if every Chinese character is a word"
                )
        return words_of(text, row.place)

    def _labels(self, cell: Any, words: Sequence[str], place: str) -> list[int]:
        if not isinstance(cell, (str, list)):
            raise DataError(f"{place}: the label should be a list or a string of labels, not {cell!r}")
        labels = split_words(cell) if isinstance(cell, str) else cell
        if len(labels) != len(words):
            raise DataError(
                f"{place}: {_counted(len(labels), 'label')} for {_counted(len(words), 'word')}; "
                "every word of text_a needs one label, and both are separated by spaces or by U+0002; the "
                f"text starts with {' '.join(words)[:40]!r}"
            )
        return [self.labels.value_of(label, place) for label in labels]

    def own_fields(
        self, example: TaggedExample, window: range, with_targets: bool
    ) -> dict[str, Sequence[int]]:
        labels = example.labels or []
        return {"label_ids": labels[window.start : window.stop]} if with_targets else {}

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        batch = super().collate(rows, indices, draw)
        mask = np.zeros(batch["token_ids"].shape, dtype=bool)  # [batch, seq]
        for row, index in enumerate(indices):
            mask[row, rows["word_starts"][index]] = True
        batch["word_mask"] = torch.from_numpy(mask)
        if "label_ids" in rows:
            label_ids = np.full(mask.shape, NO_LABEL, dtype=np.int64)
            label_ids[mask] = np.concatenate([rows["label_ids"][index] for index in indices])
            batch["label_ids"] = torch.from_numpy(label_ids)
        return batch

    def record(self, example: Any, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:  # noqa: ARG002
        words = {name: [*chain.from_iterable(row[name] for row in decoded)] for name in decoded[0]}
        return {**words, "labels": self._named(words["labels"])}

    def gold(self, example: TaggedExample) -> Record:
        assert example.labels is not None, "evaluation needs examples that were read with labels"
        check_labelled(example.labels[0], example.place)
        return {"labels": self._named(example.labels), "label_ids": example.labels}

    def _named(self, labels: Iterable[int]) -> list[str]:
        return [self.labels.names.get(label, str(label)) for label in labels]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
