"""One streaming pass over a data file: its statistics, and digests of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from palm.check.digests import RowDigests
from palm.reader import Reader
from palm.reader.bad_rows import BadRows
from palm.reader.cache import encoded_chunks
from palm.reader.inspection import (
    MOST_LETTERS,
    FileStatistics,
    Role,
    examples_of,
    gold_of,
    place_of,
    readable_row,
    texts_of,
    tokenizer_of,
)
from palm.reader.rows import Rows, TextFacts
from palm.reader.tables.columns import cut
from palm.reader.tables.selection import is_selection, read_selection, table_of

FIRST_ROWS = 3
"""Number of rows to show as the model sees them."""

MOST_UNKNOWN_TEXTS = 500
"""Number of texts in which unknown words are located: tokenizing with offsets is slower."""


@dataclass(frozen=True)
class FileCheck:
    """Statistics of a file.

    Args:
        role: its role in the run: `train`, `dev` or `pred`.
        path: the file.
        chosen_by: settings that chose some of its rows; empty if all are used.
        examples: number of examples.
        rows: number of rows for the model: more than examples if long texts are split into windows.
        repeated: examples with the texts of an earlier one.
        contradictory: examples with the same text as another one and a different label.
        labels: labels and their counts, the most frequent first, up to 200.
        num_labels: number of distinct labels.
        label_range: minimum, mean and maximum of numeric labels.
        tokens: tokens per row: shortest, mean, median, 95th and 99th percentile, longest.
        histogram: ranges of tokens, and the number of rows in each.
        truncated: unit that is too long (`rows`, `questions`) -> how many are truncated.
        unknown: number of tokens that are not in the vocabulary.
        unknown_share: their fraction of all tokens.
        first_rows: the first rows as the model sees them.
    """

    role: Role
    path: str
    chosen_by: Mapping[str, Any]
    examples: int
    rows: int
    repeated: int
    contradictory: int
    labels: Sequence[tuple[str, int]]
    num_labels: int
    label_range: Sequence[float]
    tokens: Mapping[str, float]
    histogram: Sequence[tuple[str, int]]
    truncated: Mapping[str, int]
    unknown: int
    unknown_share: float
    first_rows: Sequence[str]


class FileReading:
    """One pass over a file; call `run` once.

    Args:
        reader: the task's reader; it collects `facts` and `bad` during the pass.
        path: the file.
        role: its role in the run.

    Attributes:
        digests: digests of its examples.
        bad: its unusable rows.
        facts: unknown tokens and truncation.
        counts: statistics of labels and lengths.
    """

    def __init__(self, reader: Reader, path: Path, role: Role) -> None:
        self.reader = reader
        self.path = path
        self.role = role
        self.digests = RowDigests()
        self.facts = TextFacts()
        self.bad = BadRows(path, "error" if role == "pred" else reader.on_bad_row)
        self.counts = FileStatistics(reader)
        self.unknown_texts = 0
        self.first_rows: list[str] = []
        self.unknown_words: Counter[str] = Counter()
        self._tokenizer = tokenizer_of(reader)
        self._normalizer = self._tokenizer and self._tokenizer.to_library().normalizer

    def run(self) -> None:
        """Read the file; unusable rows are collected in `bad`.

        Raises:
            DataError: it does not have the reader's format.
        """
        found = examples_of(self.reader, self.path, self.role)
        examples = tqdm(found, f"reading {self.path.name}", leave=False, disable=None, unit=" rows")
        self.reader.facts = self.facts
        self.reader.bad_rows = self.bad
        try:
            for chunk, rows in encoded_chunks(self.reader, examples, with_targets=self.role == "train"):
                truths = list(gold_of(self.reader, chunk, self.role))
                for example, truth in zip(chunk, truths, strict=True):
                    texts = [self._normalized(text) for text in texts_of(example)]
                    self.digests.add(texts, tuple(map(str, truth.values())) or None)
                self.counts.add(rows, truths)
                self._show_first(chunk, rows, truths)
                self._count_unknown(chunk, rows)
        finally:
            self.reader.facts = self.reader.bad_rows = None

    def _normalized(self, text: str) -> str:
        """Return the text as the model sees it: uniform spaces; no case and accents if it lower-cases."""
        return " ".join((self._normalizer.normalize_str(text) if self._normalizer else text).split())

    def _show_first(self, chunk: Sequence[Any], rows: Rows, truths: Sequence[Mapping[str, Any]]) -> None:
        if self._tokenizer is None:
            return
        for row in range(min(FIRST_ROWS - len(self.first_rows), len(rows))):
            number = int(rows["example"][row])
            targets = {}
            for name, value in truths[number].items():
                value = self.counts.names.get(value, value) if name == "label" else value
                words = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
                targets[name] = cut(words, MOST_LETTERS)
            text = readable_row(self._tokenizer, rows["token_ids"][row], targets)
            self.first_rows.append(f"{place_of(chunk[number])} {text}")

    def _count_unknown(self, chunk: Sequence[Any], rows: Rows) -> None:
        """Count the unknown words in the first texts that have any."""
        tokenizer = self._tokenizer
        column = rows["token_ids"]
        if tokenizer is None or column.offsets is None or not len(rows):
            return
        places = np.flatnonzero(column.values == tokenizer.unk_id)
        found = np.unique(np.searchsorted(column.offsets, places, side="right") - 1)
        wanted = np.unique(rows["example"].values[found])[: MOST_UNKNOWN_TEXTS - self.unknown_texts]
        self.unknown_texts += len(wanted)
        texts = [text for number in wanted.tolist() for text in texts_of(chunk[number])]
        encodings = tokenizer.encode_with_offsets(texts) if texts else []
        for text, subwords in zip(texts, encodings, strict=True):
            for place in np.flatnonzero(subwords.ids == tokenizer.unk_id).tolist():
                self.unknown_words[text[subwords.starts[place] : subwords.ends[place]]] += 1

    def check(self, repeated: int, contradictory: int) -> FileCheck:
        """Return the statistics; for the arguments see `FileCheck`."""
        counts = self.counts
        least, total, largest = counts.values or (0.0, 0.0, 0.0)
        return FileCheck(
            role=self.role,
            path=str(table_of(self.path)),
            chosen_by=read_selection(self.path).settings if is_selection(self.path) else {},
            repeated=repeated,
            contradictory=contradictory,
            num_labels=len(counts.labels),
            label_range=[least, total / counts.examples, largest] if counts.values else [],
            truncated={what: count for what, (count, _, _) in self.facts.cut.items()},
            unknown=self.facts.unknown,
            unknown_share=self.facts.unknown / max(1, self.facts.tokens),
            first_rows=self.first_rows,
            **counts.summary(),
        )

    def examples_at(self, numbers: set[int]) -> dict[int, Any]:
        """Return the examples with these numbers, from 0; reads the file again up to the last of them."""
        if not numbers:
            return {}
        until: Iterator[Any] = islice(examples_of(self.reader, self.path, self.role), max(numbers) + 1)
        return {number: example for number, example in enumerate(until) if number in numbers}
