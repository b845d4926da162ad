"""What a data file holds: how many examples, how long they are, which labels they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from palm.core.errors import PalmError
from palm.core.files.checksum import checksum
from palm.reader import Reader
from palm.reader.rows.chunks import encoded_chunks

MOST_EXAMPLES = 10_000
"""That are read of a file: enough for its statistics, and no long wait for a large one."""

MOST_LABELS = 40

BINS = 16


@dataclass(frozen=True)
class DataFile:
    """Statistics of one file.

    Args:
        role: `train` or `dev`.
        path: where it is.
        sha256: of its bytes.
        size: in bytes.
        examples: how many were counted.
        is_cut: whether the file has more.
        rows: what they became: as many, or more where long texts are cut into windows.
        tokens: of a row: the shortest, the median, 95 % are no longer, the longest.
        histogram: ranges of tokens and how many rows are in each.
        at_limit: rows that fill `max_seq_len`, whose texts may have been cut.
        labels: the most frequent labels and how often they occur.
    """

    role: str
    path: str
    sha256: str
    size: int
    examples: int
    is_cut: bool
    rows: int
    tokens: Sequence[int]
    histogram: Sequence[tuple[str, int]]
    at_limit: int
    labels: Sequence[tuple[str, int]]


def statistics(reader: Reader, path: Path, role: str, most: int = MOST_EXAMPLES) -> DataFile:
    """Count a file's first examples.

    Raises:
        DataError: a row that cannot be used, with its file and line.
    """
    examples = reader.read_true(path)
    found = list(islice(examples, most))
    parts = [rows.lengths for _, rows in encoded_chunks(reader, found, with_targets=False)]
    lengths: np.ndarray[Any, np.dtype[np.int64]] = (
        np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    )
    limit = reader.settings.get("max_seq_len")
    return DataFile(
        role,
        str(path),
        checksum(path),
        path.stat().st_size,
        len(found),
        next(examples, None) is not None,
        len(lengths),
        [int(np.quantile(lengths, q, method="lower")) for q in (0, 0.5, 0.95, 1)] if len(lengths) else [],
        histogram(lengths),
        int((lengths == limit).sum()),
        _labels(reader, found).most_common(MOST_LABELS),
    )


def histogram(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[str, int]]:
    """How many of some whole numbers are in each of up to `BINS` ranges of equal width."""
    if not len(lengths):
        return []
    low, high = int(lengths.min()), int(lengths.max())
    width = -(-(high - low + 1) // BINS)
    counts = np.bincount((lengths - low) // width)
    return [
        (str(start) if width == 1 else f"{start}–{start + width - 1}", int(count))
        for start, count in zip(range(low, high + 1, width), counts, strict=False)
    ]


def _labels(reader: Reader, examples: Sequence[Any]) -> Counter[str]:
    """How often every label occurs; empty where examples have none."""
    names = getattr(getattr(reader, "labels", None), "names", {})
    counts: Counter[str] = Counter()
    try:
        for truth in reader.truths(examples):
            if isinstance(truth.get("label"), int):
                counts[names.get(truth["label"], str(truth["label"]))] += 1
            elif "labels" in truth:
                counts.update(truth["labels"])
    except PalmError:
        return counts  # a reader of somebody's own that tells no truths
    return counts
