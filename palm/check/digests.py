"""Digests of rows, for finding repetitions, contradictions, and rows that are in two files."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Digests: TypeAlias = "array[int]"
"""One integer for each row; numpy reads it in place."""

Pairs = npt.NDArray[np.int64]
"""Numbers of matching rows, from 0, `[pairs, 2]`: the earlier one or that of training, and the other."""

NO_LABEL = 0
"""The digest of a row without a label."""

_BETWEEN = re.compile(r"[\W_]+")


def normalised(text: str) -> str:
    """Normalize a text so that near copies are equal: NFKC, one case, only words."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _BETWEEN.sub(" ", text.casefold()).strip()


class RowDigests:
    """Digests of the rows of one file, 20 bytes per row.

    With 64 bits, the chance of any collision among a hundred million rows is 1 in 3,000. The 32 bits of
    labels are only compared between rows with the same text.

    Attributes:
        exact: digests of the unchanged texts, 64 bits each.
        normalised: digests of the normalized texts, 64 bits each.
        labels: digests of the labels, 32 bits each.
    """

    def __init__(self) -> None:
        # An `array` grows in place, by an eighth at a time; lists of integers need eight times the memory.
        self.exact: Digests = array("Q")
        self.normalised: Digests = array("Q")
        self.labels: Digests = array("I")

    def add(self, texts: Sequence[str], label: Any = None) -> None:
        """Add the next row.

        Args:
            texts: its texts, in order.
            label: its label, of any type; None if it has none.
        """
        self.exact.append(_digest("\x1f".join(texts)))
        self.normalised.append(_digest("\x1f".join(map(normalised, texts))))
        self.labels.append(NO_LABEL if label is None else zlib.crc32(repr(label).encode()) | 1)


def _digest(text: str) -> int:
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def shared(train: Digests, other: Digests) -> Pairs:
    """Find rows of `other` that are also in `train`, each with the first such row of `train`."""
    numbers = np.asarray(train)
    order = np.argsort(numbers, kind="stable")
    wanted = np.asarray(other)
    places = np.minimum(np.searchsorted(numbers[order], wanted), max(len(order) - 1, 0))
    first = order[places] if len(order) else np.full(len(wanted), -1)
    is_found = (first >= 0) & (numbers[first] == wanted) if len(order) else np.zeros(len(wanted), bool)
    pairs: Pairs = np.stack([first, np.arange(len(wanted))], axis=1)[is_found]
    return pairs


def repeated(digests: Digests) -> Pairs:
    """Find rows that repeat an earlier one, each with the first of them."""
    pairs = shared(digests, digests)
    found: Pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return found


def contradicting(pairs: Pairs, first: Digests, second: Digests) -> Pairs:
    """Return the pairs of rows that both have a label, and not the same; given the labels of each file."""
    ours = np.asarray(first)[pairs[:, 0]]
    theirs = np.asarray(second)[pairs[:, 1]]
    found: Pairs = pairs[(ours != theirs) & (ours != NO_LABEL) & (theirs != NO_LABEL)]
    return found
