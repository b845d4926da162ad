"""Statistics of a data file: examples, lengths, labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from palm.reader import Reader
from palm.reader.chunks import encoded_chunks
from palm.reader.inspection import FileStatistics, gold_of
from palm.reader.tables.files import data_size
from palm.reader.tables.selection import data_checksum

MOST_EXAMPLES = 10_000
"""Maximum examples read from a file: enough for statistics, without a long wait for a large file."""


@dataclass(frozen=True)
class DataFile:
    """Statistics of one file; for the other fields see `palm.reader.inspection.FileStatistics.summary`.

    Args:
        role: `train` or `dev`.
        path: of the file.
        sha256: of its bytes.
        size: in bytes.
        is_cut: whether the file has more examples than were counted.
        at_limit: number of rows that fill `max_seq_len`, whose texts may have been truncated.
    """

    role: str
    path: str
    sha256: str
    size: int
    is_cut: bool
    at_limit: int
    examples: int
    rows: int
    tokens: Mapping[str, float]
    histogram: Sequence[tuple[str, int]]
    labels: Sequence[tuple[str, int]]


def statistics(reader: Reader, path: Path, role: str, most: int = MOST_EXAMPLES) -> DataFile:
    """Count the first examples of a file.

    Raises:
        DataError: a row cannot be used; with its file and line.
    """
    examples = reader.read_gold(path)
    counts = FileStatistics(reader)
    for chunk, rows in encoded_chunks(reader, islice(examples, most), with_targets=False):
        counts.add(rows, gold_of(reader, chunk, "dev"))
    return DataFile(
        role=role,
        path=str(path),
        sha256=data_checksum(path),
        size=data_size(path),
        is_cut=next(examples, None) is not None,
        at_limit=counts.lengths[reader.settings.get("max_seq_len", -1)],
        **counts.summary(),
    )
