"""The `seq_label` reader: a text of words per line, and a label for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from palm.config import FilePath
from palm.core.differences import shortened
from palm.core.errors import ConfigError, DataError
from palm.core.files.untrusted import parse_json
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.predictions import Record
from palm.reader.rows.collate import SEQUENCE_ATTR
from palm.reader.rows.rows import Column, Rows
from palm.reader.tables.record import TableRow, is_missing
from palm.reader.text.labels import Labels, check_labelled
from palm.reader.text.sequence import sequence_of
from palm.reader.text.windows import word_windows
from palm.reader.tokenizing import TokenizingReader

WORD_SEPARATOR = "\x02"
"""The separator of words in PaddlePALM 2.x; a text that has one is not split at spaces."""


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One line of a table.

    Args:
        words: the text's words.
        labels: their labels' ids; None where they are not known or not read.
        place: `file:line`, for messages.
    """

    words: list[str]
    labels: list[int] | None
    place: str


@READERS.register("seq_label")
class SequenceLabelReader(TokenizingReader):
    """Reads TSV files with the columns `text_a` and `label`, a label for every word.

    Words, and labels, are separated by spaces or by U+0002. A row is `[CLS] text_a [SEP]`, every
    word cut into pieces by itself; a text that does not fit continues in further rows, so every word
    is read. A word is labelled at its first piece, which `word_mask` marks; `label_ids` is -100
    elsewhere. A record is `{"index": 0, "labels": ["O", "B-city", ...]}`, as many as words.

    Args:
        label_map: label name -> id, or a JSON file with it.
        for_cn: accepted for PaddlePALM's files; it has no effect, because blanks separate the words.
        n_classes: number of labels; the `label_map` must name all of them.
        missing_labels: whether the labels of a training row may be left empty; it then trains only tasks that
            share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 2.0.2, `SequenceLabelReader`.
    """

    cacheable = True
    known_columns = ("label", "text_a")
    ignored_settings: ClassVar[dict[str, str]] = {"for_cn": "blanks separate the words"}
    aliases: ClassVar[dict[str, str]] = TokenizingReader.aliases | {
        "label_map_config": "label_map",
        "num_classes": "n_classes",
    }
    order_2x = (
        *TokenizingReader.order_2x[:2],
        "label_map",
        *TokenizingReader.order_2x[2:],
        "dev_count",
        "print_prefix",
    )

    def setup(
        self,
        label_map: FilePath | dict[str, int],
        *,
        n_classes: int | None = None,
        missing_labels: bool = False,
    ) -> None:
        if self.max_seq_len < 3:
            raise ConfigError(f"max_seq_len should be at least 3, not {self.max_seq_len!r}")
        self.missing_labels = missing_labels
        self.labels = Labels(n_classes, label_map)
        if unnamed := [number for number in range(n_classes or 0) if number not in self.labels.names]:
            ids = ", ".join(shortened([*map(str, unnamed)], 10))
            raise ConfigError(
                f"label_map: no label has the id {ids}; n_classes {n_classes} needs all their names"
            )
        self.outputs_attr = {**SEQUENCE_ATTR, "word_mask": TensorSpec(("batch", "seq"), torch.bool)}
        self.targets_attr = {"label_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.truth_names = ("labels",)

    def read(self, path: Path, with_targets: bool) -> Iterator[TaggedExample]:
        return self._tagged(path, with_targets, self.missing_labels)

    def read_true(self, path: Path) -> Iterator[TaggedExample]:
        return self._tagged(path, with_targets=True, missing_labels=False)

    def _tagged(self, path: Path, with_targets: bool, missing_labels: bool) -> Iterator[TaggedExample]:
        def example(row: TableRow) -> TaggedExample | None:
            words = _words(row.cells["text_a"], row.place)
            if not with_targets:
                return TaggedExample(words, None, row.place)
            if not is_missing(cell := row.cells["label"]):
                return TaggedExample(words, self._labels(cell, words, row.place), row.place)
            return TaggedExample(words, [NO_LABEL] * len(words), row.place) if missing_labels else None

        columns = ("text_a", "label") if with_targets else ("text_a",)
        return self.table_examples(path, with_targets, columns, example)

    def _labels(self, cell: Any, words: Sequence[str], place: str) -> list[int]:
        if not isinstance(cell, (str, list)):
            raise DataError(f"{place}: the label should be a list or a string of labels, not {cell!r}")
        labels = split_words(cell) if isinstance(cell, str) else cell
        if len(labels) != len(words):
            raise DataError(
                f"{place}: {_counted(len(labels), 'label')} for {_counted(len(words), 'word')}; "
                "every word of text_a needs one label, both separated by spaces or by U+0002; the text "
                f"starts with {' '.join(words)[:40]!r}"
            )
        return [self.labels.value_of(label, place) for label in labels]

    def parse(self, texts: Iterable[Any]) -> Iterator[TaggedExample]:
        for number, text in enumerate(texts):
            place = f"text {number}"
            cell = text["text_a"] if isinstance(text, dict) and text.keys() == {"text_a"} else text
            yield TaggedExample(_words(cell, place), None, place)

    def encode(self, examples: Sequence[TaggedExample], with_targets: bool) -> Rows:
        words = list(dict.fromkeys(chain.from_iterable(example.words for example in examples)))
        # Every word has a piece in its row, and no more than a row has room for.
        room = self.max_seq_len - 2
        encoded = zip(words, self.tokenizer.encode_words(words), strict=True)
        pieces_of = {word: ids[:room] or [self.tokenizer.unk_id] for word, ids in encoded}
        columns: dict[str, list[Any]] = {"token_ids": [], "example": [], "word_starts": [], "label_ids": []}
        for number, example in enumerate(examples):
            pieces = [pieces_of[word] for word in example.words]
            for start, length in word_windows(list(map(len, pieces)), room):
                window = slice(start, start + length)
                sequence = sequence_of(self.tokenizer, list(chain(*pieces[window])), None, self.max_seq_len)
                columns["token_ids"].append(sequence.token_ids)
                columns["example"].append(number)
                # the columns of the words' first pieces, after `[CLS]`
                starts = accumulate(map(len, pieces[window][:-1]), initial=1)
                columns["word_starts"].append(list(starts))
                columns["label_ids"].append((example.labels or [])[window])
        if self.facts is not None:
            texts = [" ".join(example.words) for example in examples]
            ids = [list(chain.from_iterable(pieces_of[word] for word in each.words)) for each in examples]
            self.facts.read(self.tokenizer, texts, ids)
        return Rows(
            {
                "token_ids": Column.ragged(columns["token_ids"]),
                "first_segment": Column.scalar(list(map(len, columns["token_ids"]))),
                "example": Column.scalar(columns["example"]),
                "word_starts": Column.ragged(columns["word_starts"]),
                **({"label_ids": Column.ragged(columns["label_ids"])} if with_targets else {}),
            }
        )

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

    def records(
        self, examples: Sequence[TaggedExample], rows: Rows, decoded: Sequence[Record], first: int
    ) -> Iterator[Record]:
        labels: list[list[str]] = [[] for _ in examples]
        for example, value in zip(rows["example"].values.tolist(), decoded, strict=True):
            labels[example] += self._named(value["labels"])
        for index, names in enumerate(labels, start=first):
            yield {"index": index, "labels": names}

    def truths(self, examples: Iterable[TaggedExample]) -> Iterator[Record]:
        for example in examples:
            assert example.labels is not None, "examples to evaluate on are read with labels"
            check_labelled(example.labels[0], example.place)
            yield {"labels": self._named(example.labels)}

    def _named(self, labels: Iterable[int]) -> list[str]:
        return [self.labels.names.get(label, str(label)) for label in labels]

    def results(self, records: Iterable[Record]) -> Iterator[list[int]]:
        """A list of label ids a text: those of its words between two of `[CLS]` and `[SEP]`, the last id."""
        ids = {name: number for number, name in self.labels.names.items()}
        for record in records:
            words = [ids[name] if name in ids else int(name) for name in record["labels"]]
            yield [max(ids.values()), *words, max(ids.values())]


def split_words(cell: str) -> list[str]:
    """The words (or labels) of one cell of a table.

    They are separated by U+0002, which may also close the cell, or else by any number of spaces; or the cell
    is a JSON array of strings.
    """
    if cell.startswith('["') and cell.endswith('"]'):
        with suppress(ValueError):
            return list(parse_json(cell.encode()))
    if WORD_SEPARATOR in cell:
        return cell.removesuffix(WORD_SEPARATOR).split(WORD_SEPARATOR)
    return [word for word in cell.split(" ") if word]


def _words(text: Any, place: str) -> list[str]:
    words = split_words(text) if isinstance(text, str) else text
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise DataError(
            f"{place}: expected a string of words, a list of words or {{'text_a': …}}, not {text!r}"
        )
    if not words:
        raise DataError(f"{place}: text_a is empty; every row needs its words")
    return list(words)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
