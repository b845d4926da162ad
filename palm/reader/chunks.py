"""Encode files in chunks, so that no file has to fit into memory as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palm.core.errors import DataError
from palm.core.logging import logger
from palm.reader.rows.facts import TextFacts
from palm.reader.rows.rows import Rows
from palm.reader.text.bad_rows import BadRows

if TYPE_CHECKING:
    from palm.reader.base import Reader

CHUNK_EXAMPLES = 1024
"""Examples held as text at a time; with 4096, a million rows took 10 MB more memory at the same speed."""


def chunks_of(examples: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Split examples into lists of `size`."""
    examples = iter(examples)
    while chunk := list(islice(examples, size)):
        yield chunk


def encoded_chunks(
    reader: Reader, examples: Iterable[Any], with_targets: bool, size: int = CHUNK_EXAMPLES
) -> Iterator[tuple[list[Any], Rows]]:
    """Split examples into chunks of `size` and encode each chunk."""
    for chunk in chunks_of(examples, size):
        yield chunk, reader.encode(chunk, with_targets)


def training_parts(reader: Reader, path: Path, bad: BadRows) -> Iterator[Rows]:
    """All rows of a training file, in chunks.

    Args:
        reader: the reader of the file.
        path: the training file.
        bad: collects the rows that cannot be used.

    Raises:
        DataError: reports all rows that cannot be used, unless they may be left out; or no rows.
    """
    empty = True
    facts = TextFacts()
    reader.bad_rows = bad
    reader.facts = facts
    try:
        for _, rows in encoded_chunks(reader, reader.read(path, with_targets=True), with_targets=True):
            if len(rows) and not bad.is_refused:
                empty = False
                yield rows
    finally:
        reader.facts = reader.bad_rows = None
    bad.finish()
    for line in facts.warnings(path, reader.vocab_path):
        logger.warning("%s", line)
    if empty:
        raise DataError(f"{path}: no rows to train on")
