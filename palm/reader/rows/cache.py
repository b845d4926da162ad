"""Training files encoded once: their rows are kept on disk and mapped into memory from then on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from palm.core.errors import DataError, StorageError
from palm.core.files.atomic_dir import move_foreign_aside, new_directory, remove_directory, remove_stale
from palm.core.files.checksum import checksum
from palm.core.files.door import make_folder, remove
from palm.core.files.locking import locked
from palm.core.files.manifest import is_sealed
from palm.core.logging import collected_warnings, logger
from palm.reader.rows.chunks import RowEncoder, training_parts
from palm.reader.rows.rows import Rows
from palm.reader.rows.stored import mapped_rows, write_arrays, write_description
from palm.reader.tables.selection import data_checksum
from palm.reader.text.bad_rows import BadRows

VARIABLE = "PALM_DATA_CACHE"
KEPT_DAYS = 30
"""Days until unused rows are removed."""

REPORT_SECONDS = 10.0
"""Time between two lines about how far the encoding of a file has come."""

_KEY = re.compile(r"[0-9a-f]{32}")

FORMAT = 3
"""How rows are laid down on disk."""

_HASH = "blake2b"


@dataclass(frozen=True)
class DataCache:
    """A folder of encoded files, each in a folder of its own that appears whole.

    Args:
        folder: made when it is needed; several processes and users may share it.
    """

    folder: Path

    @classmethod
    def of_user(cls) -> DataCache | None:
        """The folder that the environment variable PALM_DATA_CACHE names, or `palm` among the user's caches.

        Returns:
            None where the variable is empty, or the user has no home.
        """
        named = os.environ.get(VARIABLE)
        if named is not None:
            return cls(Path(named).expanduser()) if named else None
        try:
            if sys.platform == "win32":
                caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
            elif sys.platform == "darwin":
                caches = Path.home() / "Library" / "Caches"
            else:
                caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError:  # of `Path.home`
            return None
        return cls(caches / "palm")

    def rows(self, reader: RowEncoder, path: Path, key: str) -> Rows:
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
        entry = self.folder / key
        with suppress(StorageError):
            if (rows := _rows_with_messages(entry)) is not None:
                return rows
        make_folder(self.folder)
        with locked(self.folder / f"{key}.lock", f"encoding {path}"):
            try:
                if (rows := _rows_with_messages(entry)) is not None:  # another process has made them by now
                    return rows
            except StorageError as error:
                logger.warning("%s: its encoded rows are damaged, so it is encoded again: %s", path, error)
                move_foreign_aside(entry)
                remove_directory(entry)
            forget_unused(self.folder)
            try:
                _encode_into(entry, reader, path)
            except StorageError:
                if not is_sealed(entry):  # where there are no locks, another process may have been first
                    raise
            return mapped_rows(entry)[0]


def key_of(reader: RowEncoder, path: Path) -> str | None:
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
    package = Path(__file__).parents[1]  # palm.reader, which also has the tokenizers
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


def forget_unused(folder: Path) -> None:
    """Remove what dead processes left in a cache, and entries that were not used for `KEPT_DAYS` days."""
    remove_stale(folder, lambda name: _KEY.fullmatch(name) is not None, is_shared=True)
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for place in folder.iterdir():
        about = place.lstat()
        if not _KEY.fullmatch(place.stem) or about.st_mtime > oldest:
            continue
        if place.suffix == ".lock" and not about.st_size:
            remove(place)
        elif is_sealed(place):
            remove_directory(place)


def training_rows(reader: RowEncoder, path: Path, cache: DataCache | None) -> Rows:
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


def _rows_with_messages(entry: Path) -> Rows | None:
    """The rows of an entry, and the warnings that went with their encoding; None where there is none.

    Raises:
        StorageError: it is damaged.
    """
    if not entry.is_dir():
        return None
    rows, warnings = mapped_rows(entry)
    with suppress(OSError):  # an entry of another user
        os.utime(entry)
    for warning in warnings:
        logger.warning("%s", warning)
    return rows


def _encode_into(entry: Path, reader: RowEncoder, path: Path) -> None:
    """Encode a file into a new entry."""
    with new_directory(entry) as part:
        bad = BadRows(path, reader.on_bad_row)
        with collected_warnings() as warnings:
            columns = write_arrays(part, _with_progress(training_parts(reader, path, bad), path))
        write_description(part, columns, warnings, (bad.records, bad.count))
        if key_of(reader, path) != entry.name:
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
