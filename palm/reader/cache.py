"""The cache of encoded training files, whose rows are memory-mapped from disk."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from palm.core.cache import Cache
from palm.core.errors import DataError, StorageError
from palm.core.io import checksum
from palm.core.logging import collected_warnings, logger
from palm.reader.rows import BadRows, Rows, TextFacts, mapped_rows, write_rows
from palm.reader.tables.files import data_checksum, shown_path

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
        yield chunk, reader.encode_usable(chunk, with_targets)


def training_parts(reader: Reader, path: Path) -> Iterator[Rows]:
    """All rows of a training file, in chunks.

    Args:
        reader: the reader of the file.
        path: the training file.

    Raises:
        DataError: reports all rows that cannot be used, unless they may be left out; or no rows.
    """
    empty = True
    facts = TextFacts()
    bad = reader.bad_rows = BadRows(path, reader.on_bad_row)
    reader.facts = facts
    try:
        for _, rows in encoded_chunks(reader, reader.read(path, with_targets=True), with_targets=True):
            if len(rows) and not bad.is_refused:
                empty = False
                yield rows
    finally:
        reader.facts = reader.bad_rows = None
    bad.finish()
    for _, found, remedy in facts.remarks(reader.vocab_path):
        logger.warning("%s: %s; %s", shown_path(path), found, remedy)
    if empty:
        raise DataError(f"{shown_path(path)}: no rows to train on")


REPORT_SECONDS = 10.0
"""Seconds between two log lines about the progress of encoding a file."""

FORMAT = 6
"""Version of the format of rows on disk."""

_HASH = "blake2b"


def _cached_rows(cache: Cache, reader: Reader, path: Path, key: str) -> Rows:
    """The memory-mapped rows of a training file; if they are not cached yet, one process encodes them."""
    is_new = False

    def fill(part: Path) -> None:
        nonlocal is_new
        is_new = True
        _encode_into(part, reader, path, key)

    def read(entry: Path) -> Rows:
        rows, warnings = mapped_rows(entry)
        for warning in () if is_new else warnings:
            logger.warning("%s", warning)
        return rows

    return cache.entry(key, str(path), fill, read)


def key_of(reader: Reader, path: Path) -> str | None:
    """The key of a training file's rows, 32 hexadecimal digits; None if they cannot be cached.

    It covers the bytes of the file and of the vocabulary's files, the reader's class and source code, the
    source code of palm's readers and tokenizers, the reader's settings (for files, their bytes), and the
    version of the `tokenizers` library. Names and paths of files are ignored.

    There is no key if the reader's class does not set `cacheable = True` itself, if a setting cannot be
    serialized, or if one of the files cannot be read.
    """
    # The key covers the content of everything that a row may depend on: a stale entry would silently train on
    # wrong rows, while an unnecessary entry only costs one more encoding. A user's class therefore has to
    # declare that rows depend only on its module and settings, and a change to palm's readers encodes again.
    kind = type(reader)
    if not kind.__dict__.get("cacheable", False):
        return None
    package = Path(__file__).parent  # palm.reader, which includes the tokenizers
    try:
        modules = [Path(inspect.getfile(owner)) for owner in kind.__mro__[:-1]]  # without `object`
        sources = dict.fromkeys([*sorted(package.rglob("*.py")), *modules])
        parts = {
            "format": FORMAT,
            "data": data_checksum(path, _HASH),
            "reader": f"{kind.__module__}.{kind.__qualname__}",
            "settings": json.dumps(reader.settings, sort_keys=True, default=_content),
            "vocabulary": [checksum(file, _HASH) for file in (reader.vocab_path, *reader.companions)],
            "code": [checksum(file, _HASH) for file in sources],
            "tokenizers": tokenizers.__version__,
        }
    except (DataError, OSError, TypeError, ValueError):
        return None
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _content(value: object) -> dict[str, str]:
    """The JSON value for a setting that is a file: the hash of its bytes."""
    if isinstance(value, Path):
        return {_HASH: checksum(value, _HASH)}
    raise TypeError(f"{value!r} cannot be serialized")


def training_rows(reader: Reader, path: Path, cache: Cache | None) -> Rows:
    """All rows of a training file, memory-mapped from the cache, or in memory without one.

    Raises:
        DataError: a row that cannot be used, or no rows.
    """
    key = None if cache is None else key_of(reader, path)
    if cache is not None and key is not None:
        try:
            return _cached_rows(cache, reader, path, key)
        except (OSError, StorageError) as error:
            logger.warning(
                "%s: the encoded rows cannot be cached in %s (%s) and are kept in memory; "
                "set data_cache to a writable folder",
                path,
                cache.folder,
                error,
            )
    return Rows.concatenate(list(training_parts(reader, path)))


def _encode_into(part: Path, reader: Reader, path: Path, key: str) -> None:
    """Encode a file into a new entry."""
    with collected_warnings() as warnings:
        write_rows(part, _with_progress(training_parts(reader, path), path), warnings)
    # Otherwise, the entry would be stored under the key of other bytes than those that were encoded.
    if key_of(reader, path) != key:
        raise DataError(f"{path}: the file changed while it was being read; start again")


def _with_progress(parts: Iterable[Rows], path: Path) -> Iterator[Rows]:
    """Yield the parts, logging the progress every `REPORT_SECONDS` seconds."""
    count = 0
    reported = time.monotonic()
    for rows in parts:
        yield rows
        count += len(rows)
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            logger.info("%s: %d rows encoded; they will be cached for later runs", path, count)
