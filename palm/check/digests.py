"""Digests of rows, for finding repetitions, contradictions, and rows that are in two files."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Digests: TypeAlias = "array[int]"
"""One integer for each row; numpy reads it in place."""

NO_LABEL = 0
"""The digest of a row without a label."""

_BETWEEN = re.compile(r"[\W_]+")


def normalised(text: str) -> str:
    """Normalize a text so that near copies are equal: NFKC, one case, only words."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _BETWEEN.sub(" ", text.casefold()).strip()


@dataclass
class RowDigests:
    """Digests of the rows of one file, 20 bytes per row.

    With 64 bits, the chance of any collision among a hundred million rows is 1 in 3,000. The 32 bits of
    labels are only compared between rows with the same text.

    Attributes:
        exact: digests of the unchanged texts, 64 bits each.
        normalised: digests of the normalized texts, 64 bits each.
        labels: digests of the labels, 32 bits each.
    """

    # An `array` grows in place, by an eighth at a time; lists of integers would need eight times the memory.
    exact: Digests = field(default_factory=lambda: array("Q"))
    normalised: Digests = field(default_factory=lambda: array("Q"))
    labels: Digests = field(default_factory=lambda: array("I"))

    def add(self, texts: Sequence[str], label: Any = None) -> None:
        """Add the next row.

        Args:
            texts: its texts, in order.
            label: its label, of any type; None if it has none.
        """
        self.exact.append(_digest("\x1f".join(texts)))
        self.normalised.append(_digest("\x1f".join(map(normalised, texts))))
        self.labels.append(NO_LABEL if label is None else zlib.crc32(repr(label).encode()) | 1)

    def __len__(self) -> int:
        return len(self.exact)


def _digest(text: str) -> int:
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Matches:
    """Rows that match another row.

    Args:
        count: number of such rows.
        pairs: the first few: the number of the matching row, and of the row, from 0.
    """

    count: int
    pairs: Sequence[tuple[int, int]] = ()


def repeated(digests: Digests, most: int) -> Matches:
    """Find rows that repeat an earlier one; each pair is (first occurrence, repetition)."""
    numbers = np.asarray(digests)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    shown = np.sort(order[repeats])[:most] if len(repeats) else repeats
    firsts = order[np.searchsorted(ordered, numbers[shown])]
    return Matches(len(repeats), list(zip(firsts.tolist(), shown.tolist(), strict=True)))


def contradictory(rows: RowDigests, most: int) -> Matches:
    """Find rows with the same text as another row and a different label; pairs contradict each other."""
    digests = np.asarray(rows.exact)
    labels = np.asarray(rows.labels)
    order = np.lexsort((labels, digests))
    texts = digests[order]
    ordered = labels[order]
    _, starts, sizes = np.unique(texts, return_index=True, return_counts=True)
    ends = starts + sizes - 1
    # Labels are sorted within a text, so they differ if the last is not the first.
    differ = (ordered[starts] != ordered[ends]) & (ordered[starts] != NO_LABEL)
    pairs = np.sort(order[np.stack([starts, ends], axis=1)[differ]], axis=1)
    shown = pairs[np.argsort(pairs[:, 0], kind="stable")[:most]].tolist()
    return Matches(int(sizes[differ].sum()), [(first, second) for first, second in shown])


def shared(train: Digests, other: Digests, most: int) -> Matches:
    """Find rows of `other` that are also in `train`; each pair is (row of `train`, row of `other`)."""
    order = np.argsort(np.asarray(train), kind="stable")
    ordered = np.asarray(train)[order]
    places = np.minimum(np.searchsorted(ordered, np.asarray(other)), max(len(ordered) - 1, 0))
    found = np.flatnonzero(ordered[places] == np.asarray(other)) if len(ordered) else np.zeros(0, np.int64)
    shown = found[:most]
    return Matches(len(found), list(zip(order[places[shown]].tolist(), shown.tolist(), strict=True)))


def relabelled(train: RowDigests, other: RowDigests) -> int:
    """Count the labelled rows of `other` with texts that `train` has only with other labels."""
    texts = np.asarray(other.exact)
    labels = np.asarray(other.labels)
    is_known = np.isin(texts, np.asarray(train.exact)) & (labels != NO_LABEL)
    # Digests of text and label are independent, so their XOR collides as rarely.
    pairs = np.asarray(train.exact) ^ np.asarray(train.labels)
    return int((is_known & ~np.isin(texts ^ labels, pairs)).sum())
