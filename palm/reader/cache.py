"""Training files encoded once: their rows are kept on disk and mapped into memory from then on."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from palm.core.errors import DataError, StorageError
from palm.core.files.cache import Cache
from palm.core.files.checksum import checksum
from palm.core.logging import collected_warnings, logger
from palm.reader.chunks import training_parts
from palm.reader.rows.rows import Rows
from palm.reader.rows.stored import mapped_rows, write_rows
from palm.reader.tables.selection import data_checksum
from palm.reader.text.bad_rows import BadRows

if TYPE_CHECKING:
    from palm.reader.base import Reader

REPORT_SECONDS = 10.0
"""Time between two lines about how far the encoding of a file has come."""

FORMAT = 3
"""How rows are laid down on disk."""

_HASH = "blake2b"


class DataCache(Cache):
    """A cache of encoded files."""

    def rows(self, reader: Reader, path: Path, key: str) -> Rows:
        """The rows of a training file, mapped; encoded first, by one process, where they are not there yet.

        Args:
            reader: of the file.
            path: the file.
            key: what `key_of` gave for the two.

        Raises:
            DataError: a row that cannot be used, no rows, or a file that changes while it is read.
            OSError: the folder cannot be written.
            StorageError: what was written cannot be read.
        """
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

        return self.entry(key, str(path), fill, read)


def key_of(reader: Reader, path: Path) -> str | None:
    """The key of a training file's rows, 32 hexadecimal digits; None where they cannot be cached.

    It covers the bytes of the file and of the vocabulary's files, the reader's class and source code, that of
    the readers and the tokenizer that come with palm, the reader's settings (of files, their bytes), and
    the version of the `tokenizers` library. Names and places of files do not count.

    There is no key for a reader whose class does not say `cacheable = True` itself, for settings that
    have no form on disk, and where one of the files cannot be read.
    """
    # Whatever a row may depend on is in the key, by its content: a stale entry would train on wrong rows and
    # nothing would show it, an entry too many costs one more encoding. So a user's class declares that its
    # module and settings are all (`cacheable` is not inherited); a change to palm's readers encodes again.
    kind = type(reader)
    if not kind.__dict__.get("cacheable", False):
        return None
    package = Path(__file__).parent  # palm.reader, which also has the tokenizers
    try:
        written = [Path(inspect.getfile(owner)) for owner in kind.__mro__[:-1]]  # without `object`
        sources = dict.fromkeys([*sorted(package.rglob("*.py")), *written])
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
    """Stand in for a setting that JSON has no form for: of a file, its bytes."""
    if isinstance(value, Path):
        return {_HASH: checksum(value, _HASH)}
    raise TypeError(f"{value!r} has no form on disk")


def training_rows(reader: Reader, path: Path, cache: DataCache | None) -> Rows:
    """All rows of a training file: mapped from the cache, or in memory where there is none.

    Raises:
        DataError: a row that cannot be used, or no rows.
    """
    key = None if cache is None else key_of(reader, path)
    if cache is not None and key is not None:
        try:
            return cache.rows(reader, path, key)
        except (OSError, StorageError) as error:
            logger.warning(
                "%s: its encoded rows cannot be written to %s (%s) and stay in memory; "
                "set data_cache to a writable folder",
                path,
                cache.folder,
                error,
            )
    bad = BadRows(path, reader.on_bad_row)
    rows = Rows.concatenate(list(training_parts(reader, path, bad)))
    rows.bad = bad.records, bad.count
    return rows


def _encode_into(part: Path, reader: Reader, path: Path, key: str) -> None:
    """Encode a file into a new entry."""
    bad = BadRows(path, reader.on_bad_row)
    with collected_warnings() as warnings:
        write_rows(part, _with_progress(training_parts(reader, path, bad), path), warnings, bad)
    # The entry would be found under the key of other bytes than those that were encoded.
    if key_of(reader, path) != key:
        raise DataError(f"{path}: the file has changed while it was read; start again")


def _with_progress(parts: Iterable[Rows], path: Path) -> Iterator[Rows]:
    """The same parts, with a log line every `REPORT_SECONDS` seconds."""
    count = 0
    reported = time.monotonic()
    for rows in parts:
        yield rows
        count += len(rows)
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            logger.info("%s: %d rows encoded, once for this run and later ones", path, count)
