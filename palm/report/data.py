"""Statistics of a data file: examples, lengths, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from palm.reader import Reader
from palm.reader.inspection import FileStatistics, histogram, quantiles, truths_of
from palm.reader.rows.chunks import encoded_chunks
from palm.reader.tables.files import data_size
from palm.reader.tables.selection import data_checksum

MOST_EXAMPLES = 10_000
"""Examples of a file that are read: enough for its statistics, and no long wait for a large one."""

MOST_LABELS = 40


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
    """Count the first examples of a file.

    Raises:
        DataError: a row that cannot be used, with its file and line.
    """
    examples = reader.read_true(path)
    counts = FileStatistics(reader)
    for chunk, rows in encoded_chunks(reader, islice(examples, most), with_targets=False):
        counts.add(rows, truths_of(reader, chunk, "dev"))
    lengths = counts.sorted_lengths()
    return DataFile(
        role,
        str(path),
        data_checksum(path),
        data_size(path),
        counts.examples,
        next(examples, None) is not None,
        len(lengths),
        quantiles(lengths, (0, 0.5, 0.95, 1)),
        histogram(lengths),
        counts.lengths[reader.settings.get("max_seq_len", -1)],
        counts.labels.most_common(MOST_LABELS),
    )
