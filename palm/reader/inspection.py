"""Examples, encoded rows and statistics of a data file in readable form."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from palm.core.errors import PalmError
from palm.reader.base import Reader
from palm.reader.labels import Labels
from palm.reader.rows import BadRow, Rows
from palm.reader.squad import SquadQuestion
from palm.reader.table import RankedExample
from palm.reader.tables.columns import cut
from palm.reader.tokenizer import Tokenizer

Role = Literal["train", "dev", "pred"]

MOST_LETTERS = 100
"""The most characters shown of a row."""

BINS = 16
"""The most ranges of a histogram."""

MOST_LABELS = 200

SPREAD = {"least": 0.0, "median": 0.5, "95 %": 0.95, "99 %": 0.99, "most": 1.0}
"""Name of a quantile -> the fraction of rows that are at most that long."""


def examples_of(reader: Reader, path: Path, role: Role) -> Iterator[Any]:
    """Read the examples of a file as a run does in this role."""
    if role == "dev":
        return reader.read_gold(path)
    return (row for row in reader.read(path, with_targets=role == "train") if not isinstance(row, BadRow))


def named_texts(example: Any) -> list[tuple[str, str]]:
    """Return the texts of an example by name; for an unknown class, all fields but its label and place."""
    if isinstance(example, SquadQuestion):
        return [("question", example.question), ("context", example.context)]
    if isinstance(words := getattr(example, "words", None), list):
        return [("text_a", getattr(example, "text", None) or " ".join(words))]
    if isinstance(getattr(example, "text_a", None), str):
        texts = [(name, getattr(example, name, None)) for name in ("text_a", "text_b", "text_b_neg")]
        listed = [(f"text {k}", text) for k, text in enumerate(getattr(example, "texts", ()))]
        return [(name, text) for name, text in texts if text is not None] + listed
    if dataclasses.is_dataclass(example):
        skipped = ("label", "labels", "place")
        names = [each.name for each in dataclasses.fields(example) if each.name not in skipped]
        return [(name, str(getattr(example, name))) for name in names]
    return [("example", str(example))]


def texts_of(example: Any) -> list[str]:
    """Return the texts of an example; examples with equal texts are duplicates."""
    return [text for _, text in named_texts(example)]


def gold_of(reader: Reader, chunk: Sequence[Any], role: Role) -> Iterator[dict[str, Any]]:
    """Return the truth of each example; an empty mapping if it has none or the reader cannot provide it."""
    for example in chunk:
        truth = {}
        if role != "pred" and not isinstance(example, RankedExample):
            with suppress(PalmError):  # a label may be missing, and a user's own reader need not define gold
                truth = reader.gold(example)
        yield {name: value for name, value in truth.items() if name != "id"}


def place_of(example: Any) -> str:
    """Return `file:line` without folders, or the id of a question."""
    if isinstance(example, SquadQuestion):
        return f"question {example.id!r}"
    name, colon, line = str(getattr(example, "place", "")).rpartition(":")
    return f"{Path(name).name}{colon}{line}"


def shown(example: Any) -> str:
    """Return an example as one short line with its place."""
    text = " | ".join(" ".join(each.split()) for each in texts_of(example))
    return f"{place_of(example)} {cut(text, MOST_LETTERS)}".strip()


def label_names(reader: Reader) -> Mapping[int, str]:
    """Return the names of label ids; empty if the reader has no labels."""
    return next((value.names for value in vars(reader).values() if isinstance(value, Labels)), {})


def tokenizer_of(reader: Reader) -> Tokenizer | None:
    """Return the reader's tokenizer if it is one of palm's."""
    tokenizer = getattr(reader, "tokenizer", None)
    return tokenizer if isinstance(tokenizer, Tokenizer) else None


class FileStatistics:
    """Label and length counts of a file, collected chunk by chunk.

    Args:
        reader: the reader of the file.

    Attributes:
        examples: the number of examples.
        labels: label -> number of occurrences.
        lengths: number of tokens -> number of rows.
        unanswered: the number of questions without an answer.
        values: the minimum, sum and maximum of numeric labels; empty if there are none.
    """

    def __init__(self, reader: Reader) -> None:
        self.names = label_names(reader)
        self.examples = 0
        self.labels: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.unanswered = 0
        self.values: list[float] = []

    def add(self, rows: Rows, truths: Iterable[Mapping[str, Any]]) -> None:
        """Count the rows of a chunk, and the truth of each of its examples."""
        for truth in truths:
            self.examples += 1
            if isinstance(truth.get("label"), int):
                self.labels[self.names.get(truth["label"], str(truth["label"]))] += 1
            elif "label_set" in truth:
                self.labels.update(self.names.get(label, str(label)) for label in truth["label_set"])
            elif found := truth.get("relations", truth.get("spans")):
                self.labels.update(each["label"] for each in found)
            elif "labels" in truth:
                self.labels.update(truth["labels"])
            elif isinstance(value := truth.get("value"), float):
                least, total, largest = self.values or (value, 0.0, value)
                self.values = [min(least, value), total + value, max(largest, value)]
            elif "answers" in truth:
                self.unanswered += not truth["answers"]
        lengths, counts = np.unique(rows.lengths, return_counts=True)
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            self.lengths[length] += count

    def summary(self) -> dict[str, Any]:
        """Return the statistics as a JSON-serializable mapping.

        Returns:
            `examples` and `rows`, their numbers; there are more rows if long texts are cut into windows.
            `tokens`: statistics of the length of a row, with the keys of `SPREAD` and `mean`. `histogram`:
            ranges of lengths and the number of rows in each. `labels`: up to `MOST_LABELS` labels and their
            counts, most frequent first.
        """
        sizes = np.array(sorted(self.lengths), dtype=np.int64)
        lengths = np.repeat(sizes, [self.lengths[size] for size in sizes.tolist()])
        tokens = {
            name: int(np.quantile(lengths, share, method="lower"))
            for name, share in SPREAD.items()
            if len(lengths)
        }
        return {
            "examples": self.examples,
            "rows": len(lengths),
            "tokens": tokens | ({"mean": round(float(lengths.mean()), 1)} if len(lengths) else {}),
            "histogram": histogram(lengths),
            "labels": self.labels.most_common(MOST_LABELS),
        }


def histogram(lengths: npt.NDArray[np.int64]) -> list[tuple[str, int]]:
    """Count integers in up to `BINS` ranges of equal width."""
    if not len(lengths):
        return []
    low = int(lengths.min())
    high = int(lengths.max())
    width = -(-(high - low + 1) // BINS)
    counts = np.bincount((lengths - low) // width)
    return [
        (str(start) if width == 1 else f"{start}–{start + width - 1}", int(count))
        for start, count in zip(range(low, high + 1, width), counts, strict=False)
    ]


def readable_row(tokenizer: Tokenizer, token_ids: Iterable[int], truth: Mapping[str, Any]) -> str:
    """Return the first tokens of a row and its truth as one line."""
    text = cut(" ".join(tokenizer.tokens(token_ids)), MOST_LETTERS)
    return " ".join([text, *(f"| {name}: {value}" for name, value in truth.items())])
