"""Readers of words, which split every word into subwords separately and lose none; and `seq_label`."""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import ConfigError, DataError, about, shortened
from palm.core.io import parse_json
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import Labels, check_labelled
from palm.reader.predictions import Record
from palm.reader.rows import SEQUENCE_ATTR, Column, Rows
from palm.reader.tables.columns import TableRow, cut, is_missing
from palm.reader.tokenizing import TokenizingReader, word_windows

WORD_SEPARATOR = "\x02"
"""The separator of words in PaddlePALM 2.x; a text that contains it is not split at spaces."""


_CJK = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese and Japanese, written without spaces

# The marks of a script belong to its letters, and so do a joiner and a soft hyphen inside a word.
_MARKS = "".join(
    chr(code) for code in range(0x300, 0xFE30) if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me")
)
WORD = re.compile(rf"(?!\s)[{_CJK}][{_MARKS}]*|(?:[^\W{_CJK}][{_MARKS}\u00ad\u200c\u200d]*)+|\S[{_MARKS}]*")
"""A word of a text: letters and digits, or a single other character, such as a Chinese one."""

CHARACTER = re.compile(rf"\S[{_MARKS}]*")
"""A character with its marks."""

_UNSPACED = re.compile(rf"[{_CJK}]{{5}}")


class WordReader(TokenizingReader):
    """Base of the readers of words.

    A row is `[CLS] text_a [SEP]`; a text that does not fit continues in further rows of whole words.

    Attributes:
        input_columns: the columns that a file without targets must have.
    """

    input_columns: tuple[str, ...] = ("text_a",)

    @abstractmethod
    def own_fields(self, example: Any, window: range, with_targets: bool) -> dict[str, Sequence[int]]:
        """The reader's own columns of one row, which contains the words of the window."""

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        return self.known_columns if with_targets else self.input_columns

    def parse(self, texts: Iterable[Any]) -> Iterator[Any]:
        for number, text in enumerate(texts):
            is_row = isinstance(text, dict) and text.keys() == {*self.input_columns}
            row = TableRow(text if is_row else {"text_a": text}, f"text {number}")
            yield self.example_of(row, with_targets=False)

    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        words = list(dict.fromkeys(chain.from_iterable(example.words for example in examples)))
        # Every word has at least one subword, and no more than fit into a row.
        room = self.max_seq_len - 2
        encoded = zip(words, self.tokenizer.encode_words(words), strict=True)
        subwords_of = {word: ids[:room] or [self.tokenizer.unk_id] for word, ids in encoded}
        owners = []
        columns: dict[str, list[Sequence[int]]] = defaultdict(list, token_ids=[], word_starts=[])
        for number, example in enumerate(examples):
            subwords = [subwords_of[word] for word in example.words]
            for window in word_windows(list(map(len, subwords)), room):
                own = subwords[window.start : window.stop]
                owners.append(number)
                columns["token_ids"].append(self.tokenizer.row(chain(*own)))
                # the columns of the words' first subwords, after `[CLS]`
                columns["word_starts"].append(list(accumulate(map(len, own[:-1]), initial=1)))
                for name, values in self.own_fields(example, window, with_targets).items():
                    columns[name].append(values)
        if self.facts is not None:
            texts = [" ".join(example.words) for example in examples]
            ids = [list(chain.from_iterable(subwords_of[word] for word in each.words)) for each in examples]
            self.facts.add_texts(self.tokenizer, texts, ids)
        return Rows(
            {
                **{name: Column.ragged(values) for name, values in columns.items()},
                "first_segment": Column.scalar(list(map(len, columns["token_ids"]))),
                "example": Column.scalar(owners),
            }
        )


def split_words(cell: str) -> list[str]:
    """The words (or labels) of one cell of a table.

    They are separated by U+0002, which may also end the cell, or else by any number of spaces; or the cell is
    a JSON array of strings.
    """
    if cell.startswith('["') and cell.endswith('"]'):
        with suppress(ValueError, RecursionError):
            return list(parse_json(cell.encode()))
    if WORD_SEPARATOR in cell:
        return cell.removesuffix(WORD_SEPARATOR).split(WORD_SEPARATOR)
    return [word for word in cell.split(" ") if word]


def is_unspaced(text: str) -> bool:
    """Check whether a text is Chinese or Japanese without spaces between its words."""
    return bool(_UNSPACED.search(text)) and len(split_words(text)) == 1 and not text.startswith("[")


def words_of(text: Any, place: str) -> list[str]:
    """The words of a cell or of a Python value.

    Raises:
        DataError: no words; the message begins with `place`.
    """
    words = split_words(text) if isinstance(text, str) else text
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise DataError(
            f"{place}: expected a string of words, a list of words or {{'text_a': …}}, not {text!r}"
        )
    if not words:
        raise DataError(f"{place}: text_a is empty; every row needs at least one word")
    return list(words)


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
@dataclass(eq=False, repr=False)
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

    label_map: FilePath | dict[str, int]
    _: KW_ONLY
    n_classes: int | None = None
    missing_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labels = Labels(self.n_classes, self.label_map)
        if unnamed := [number for number in range(self.n_classes or 0) if number not in self.labels.names]:
            ids = ", ".join(shortened([*map(str, unnamed)], 10))
            raise ConfigError(
                about(
                    "label_map",
                    f": no label has the id {ids}; with n_classes {self.n_classes}, every id needs a name",
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
