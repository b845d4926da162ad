"""The `seq_label` reader: a text of words per line, and a label for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import ConfigError, DataError
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw, Reader
from palm.reader.predictions import Record
from palm.reader.rows.collate import SEQUENCE_ATTR, padded_batch
from palm.reader.rows.rows import Column, Rows
from palm.reader.text.bad_rows import OnBadRow
from palm.reader.text.labels import Labels, check_labelled
from palm.reader.text.sequence import sequence_of
from palm.reader.text.subwords import load_tokenizer
from palm.reader.text.tsv import TableRow, read_table
from palm.reader.text.words import word_windows, words_of


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


class _WindowRow(NamedTuple):
    """Some consecutive words of an example, as one row."""

    example: int
    pieces: list[list[int]]
    labels: list[int]


@READERS.register("seq_label")
class SequenceLabelReader(Reader):
    """Reads TSV files with the columns `text_a` and `label`, a label for every word.

    Words, and labels, are separated by spaces or by U+0002. A row is `[CLS] text_a [SEP]`, every
    word cut into pieces by itself; a text that does not fit goes on in further rows, so every word
    is read. A word is labelled at its first piece, which `word_mask` marks; `label_ids` is -100
    elsewhere. A record is `{"index": 0, "labels": ["O", "B-city", ...]}`, as many as words.

    Args:
        vocab_path: the vocabulary: one token a line, or RoBERTa's `vocab.json` with `merges.txt` beside
            it, or a `tokenizer.json`.
        max_seq_len: the longest row in tokens, `[CLS]` and `[SEP]` included.
        label_map: label name -> id, or a JSON file with it.
        do_lower_case: lower-case the texts and strip accents, as an uncased vocabulary needs it; a
            vocabulary in a JSON file does so by itself.
        for_cn: accepted, changes nothing: blanks keep words apart.
        task_id: the number that ERNIE's task embedding gets.
        n_classes: number of labels; the `label_map` must name all of them.
        missing_labels: whether the labels of a training row may be left empty; it then trains only tasks that
            share it.
        on_bad_row: rows to train or evaluate on that cannot be used: error refuses the file, with all of
            them; skip leaves them out; repair mends what has one obvious mend and leaves out the others.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 2.0.2, `SequenceLabelReader`.
    """

    cacheable = True
    aliases: ClassVar[dict[str, str]] = {
        "max_len": "max_seq_len",
        "max_seqlen": "max_seq_len",
        "label_map_config": "label_map",
        "num_classes": "n_classes",
    }
    order_2x = (
        *("vocab_path", "max_seq_len", "label_map", "tokenizer", "lang", "seed", "do_lower_case"),
        *("phase", "dev_count", "print_prefix"),
    )

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        label_map: FilePath | dict[str, int],
        *,
        do_lower_case: bool = False,
        for_cn: bool = False,  # noqa: ARG002
        task_id: int = 0,
        n_classes: int | None = None,
        missing_labels: bool = False,
        on_bad_row: OnBadRow = "error",
    ) -> None:
        self.missing_labels = missing_labels
        if max_seq_len < 3:
            raise ConfigError([f"max_seq_len should be at least 3, not {max_seq_len!r}"])
        self.deal_with_bad_rows(on_bad_row)
        self.vocab_path = Path(vocab_path)
        self.tokenizer = load_tokenizer(self.vocab_path, do_lower_case)
        self.vocab_size = self.tokenizer.vocab_size
        self.max_seq_len = max_seq_len
        self.labels = Labels(n_classes, label_map)
        unnamed = [str(number) for number in range(n_classes or 0) if number not in self.labels.names]
        if unnamed:
            listed = ", ".join(unnamed[:10]) + (", …" if len(unnamed) > 10 else "")
            raise ConfigError(
                [f"label_map: no label has the id {listed}; n_classes {n_classes} needs all their names"]
            )
        self.task_id = task_id
        self.outputs_attr = {**SEQUENCE_ATTR, "word_mask": TensorSpec(("batch", "seq"), torch.bool)}
        self.targets_attr = {"label_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.truth_names = ("labels",)

    def read(self, path: Path, with_targets: bool) -> Iterator[TaggedExample]:
        columns = ("text_a", "label") if with_targets else ("text_a",)
        rows = partial(read_table, Path(path), columns)
        yield from self.examples_of(path, with_targets, rows, partial(self._example, with_targets))

    def _example(self, with_targets: bool, row: TableRow) -> TaggedExample:
        words = _words(row.cells["text_a"], row.place)
        labels = words_of(row.cells["label"]) if with_targets else None
        if labels == [] and self.missing_labels:
            return TaggedExample(words, [NO_LABEL] * len(words), row.place)
        if labels is not None and len(labels) != len(words):
            raise DataError(
                f"{row.place}: {_counted(len(labels), 'label')} for {_counted(len(words), 'word')}; "
                "every word of text_a needs one label, both separated by spaces or by U+0002; the text "
                f"starts with {' '.join(words)[:40]!r}"
            )
        ids = None if labels is None else [self.labels.value_of(label, row.place) for label in labels]
        return TaggedExample(words, ids, row.place)

    def parse(self, texts: Iterable[Any]) -> Iterator[TaggedExample]:
        for number, text in enumerate(texts):
            place = f"text {number}"
            cell = text["text_a"] if isinstance(text, dict) and text.keys() == {"text_a"} else text
            yield TaggedExample(_words(cell, place), None, place)

    def encode(self, examples: Sequence[TaggedExample], with_targets: bool) -> Rows:
        words = list(dict.fromkeys(chain.from_iterable(example.words for example in examples)))
        # Every word has a piece in its row, and no more than a row has room for.
        room, unknown = self.max_seq_len - 2, [self.tokenizer.unk_id]
        pieces = {
            word: ids[:room] or unknown
            for word, ids in zip(words, self.tokenizer.encode_words(words), strict=True)
        }
        if self.facts is not None:
            texts = [" ".join(example.words) for example in examples]
            ids = [list(chain.from_iterable(pieces[word] for word in example.words)) for example in examples]
            self.facts.read(self.tokenizer, texts, ids)
        rows = [
            row
            for number, example in enumerate(examples)
            for row in self._rows_of(number, example, [pieces[word] for word in example.words])
        ]
        sequences = [
            sequence_of(self.tokenizer, list(chain(*row.pieces)), None, self.max_seq_len) for row in rows
        ]
        columns = {
            "token_ids": Column.ragged([sequence.token_ids for sequence in sequences]),
            "first_segment": Column.scalar([sequence.first_segment for sequence in sequences]),
            "example": Column.scalar([row.example for row in rows]),
            # the columns of the words' first pieces, after `[CLS]`
            "word_starts": Column.ragged(
                [list(accumulate(map(len, row.pieces[:-1]), initial=1)) for row in rows]
            ),
        }
        if with_targets:
            columns["label_ids"] = Column.ragged([row.labels for row in rows])
        return Rows(columns)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        batch = padded_batch(rows, indices, self.tokenizer.pad_id, self.task_id)
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

    def _rows_of(self, number: int, example: TaggedExample, pieces: list[list[int]]) -> Iterator[_WindowRow]:
        for start, length in word_windows([len(ids) for ids in pieces], self.max_seq_len - 2):
            window = slice(start, start + length)
            yield _WindowRow(number, pieces[window], (example.labels or [])[window])


def _words(text: Any, place: str) -> list[str]:
    words = words_of(text) if isinstance(text, str) else text
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise DataError(
            f"{place}: expected a string of words, a list of words or {{'text_a': …}}, not {text!r}"
        )
    if not words:
        raise DataError(f"{place}: text_a is empty; every row needs its words")
    return list(words)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
