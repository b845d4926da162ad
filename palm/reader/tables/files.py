"""Open tables by their names, here or elsewhere."""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, Literal, get_args

from palm.core.cache import Cache
from palm.core.errors import DataError
from palm.core.io import POINTER, REMEDIES, checksum, is_pointer, read_object, wrap_read_errors
from palm.core.logging import logger

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(?=[^/])")
"""The beginning of a URL; `Path` drops one of its slashes."""

_VERSIONS = ("ETag", "etag", "generation", "blob_id", "LastModified", "Last-Modified", "mtime", "created")
"""Metadata of stores that changes when the content of a file changes."""


def is_url(path: Path) -> bool:
    """Check whether a path is a URL, such as `https://…` or `s3://…`."""
    return _URL.match(str(path)) is not None


@lru_cache(maxsize=256)
def copies_of(path: Path) -> tuple[Path, ...]:
    """The local copies of the files at a URL; those of a pattern are sorted by name.

    A process queries the store only once, so it always reads the same bytes.

    Raises:
        DataError: fsspec or the store's library is not installed, no such file, a broken connection, or a
            file that changes while it is copied.
    """
    url = _URL.sub(r"\1://", str(path), count=1)
    try:
        import fsspec
    except ImportError:
        raise DataError(f"{url}: URLs need fsspec: pip install 'palm-torch[remote]'") from None
    with wrap_read_errors(url, " the data file", DataError):
        store, name = fsspec.core.url_to_fs(url)
        names = sorted(store.glob(name)) if re.search(r"[*\[]", name) else [name]
        return tuple(_copy(store, each) for each in names)


def _copy(store: Any, name: str) -> Path:
    about = _about(store, name)
    key = [str(store.protocol), name, about]
    if about.keys() <= {"size"}:  # changes cannot be detected, so only this process may use the copy
        key.append(f"{os.getpid()} {time.time_ns()}")
    named = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    copy = partial(_copy_into, store, name, about)
    return Cache.of_anyone().file(named, Path(name.split("?")[0]).name, name, copy)


def _copy_into(store: Any, name: str, about: dict[str, str], copy: Path) -> None:
    logger.info("%s: copying to your cache", name)
    try:
        store.get_file(name, str(copy))
    except OSError as error:
        if error.errno in REMEDIES:  # an error of the local disk
            raise
        raise DataError(f"{name}: cannot read the data file: {error}") from error
    if _about(store, name) != about or about.get("size", str(copy.stat().st_size)) != str(
        copy.stat().st_size
    ):
        raise DataError(f"{name}: the file changed or was truncated while it was being copied; try again")


def _about(store: Any, name: str) -> dict[str, str]:
    store.invalidate_cache()
    known = store.info(name)
    return {fact: str(known[fact]) for fact in ("size", *_VERSIONS) if known.get(fact) is not None}


TableFormat = Literal["tsv", "csv", "jsonl", "parquet", "arrow", "squad"]

FORMATS: dict[str, TableFormat] = {
    **{f".{kind}": kind for kind in get_args(TableFormat) if kind != "squad"},
    ".ndjson": "jsonl",
}
"""Suffix of a file name -> its format."""

_FOREIGN = {
    b"PK\3\4": "a ZIP archive, such as an Excel file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"\x80": "a pickle",
    b"\x1f\x8b": "compressed with gzip, but without the suffix .gz",
}
"""The first bytes of files that are sometimes mistaken for tables."""

_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def format_of(file: Path) -> TableFormat | None:
    """The format given by the suffix of a file, apart from `.gz` and the like; None for other suffixes."""
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def files_of(path: Path) -> list[Path]:
    """The local files of a table; those of a folder or pattern are sorted by name.

    Args:
        path: a file, a folder, a pattern such as `part-*.csv`, a URL, which is downloaded first, or several
            of these, separated by commas.

    Raises:
        DataError: there are none.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        found = _files_in(path)
    elif "," in str(path):
        found = [file for part in str(path).split(",") for file in files_of(Path(part.strip()))]
    elif is_url(path):
        found = list(copies_of(path))
    else:
        found = [Path(name) for name in sorted(glob.glob(str(path))) if Path(name).is_file()]  # noqa: PTH207
    if not found:
        raise DataError(f"{path}: cannot read the data file ({missing_reason(path)})")
    return found


def missing_reason(path: Path) -> str:
    """The reason why there is no data at a path, for messages."""
    if path.is_dir():
        return "no table in this folder"
    return "not a regular file" if path.exists() else "no such file"


def _files_in(folder: Path) -> list[Path]:
    """The tables in a folder; in one saved by Hugging Face's `datasets`, the files listed in its state."""
    state = folder / "state.json"
    if state.is_file():
        parts = read_object(state).get("_data_files", [])
        return [folder / Path(str(part["filename"])).name for part in parts]
    files = (file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())
    return sorted(file for file in files if format_of(file) is not None)


def is_data(path: Path) -> bool:
    """Check whether there is a data file or table at a path; URLs are assumed to exist."""
    try:
        return is_url(path) or bool(files_of(path))
    except (DataError, OSError):  # OSError: for example, a name that is too long
        return False


def digest_of(files: Sequence[Path], algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a file's bytes, or the hash of several files' hashes.

    Raises:
        OSError: a file cannot be read.
    """
    parts = [checksum(file, algorithm) for file in files]
    return parts[0] if len(parts) == 1 else hashlib.new(algorithm, "".join(parts).encode()).hexdigest()


def file_facts(path: Path) -> tuple[tuple[Path, int, int], ...]:
    """The files of a table with sizes and modification times, which tell whether they have changed."""
    return tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files_of(path))


@contextmanager
def opened(file: Path) -> Iterator[IO[bytes]]:
    """Open a data file in binary mode, decompressing it while it is read.

    Raises:
        DataError: a missing or damaged file, or one that was changed meanwhile.
    """
    opener = _COMPRESSED.get(file.suffix.lower(), open)
    try:
        with opener(file, "rb") as stream:
            start = stream.peek(64)
            if is_pointer(start):
                raise DataError(f"{file}: cannot read the data file ({POINTER})")
            if kinds := [kind for each, kind in _FOREIGN.items() if start.startswith(each)]:
                raise DataError(f"{file}: not a table, but {kinds[0]}; save it as CSV or set format")
            before = os.fstat(stream.fileno())
            yield stream
        _check_unchanged(file, before)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: cannot read the data file ({reason})") from error


def _check_unchanged(file: Path, before: os.stat_result) -> None:
    with suppress(OSError):
        now = file.stat()
        # One that was replaced or removed has been read to its end.
        is_same = os.path.samestat(now, before)
        if is_same and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise DataError(f"{file}: the file changed while it was being read; start again")


@contextmanager
def seekable(file: Path) -> Iterator[IO[bytes]]:
    """Open a data file for random access; a compressed one is decompressed into a temporary file first.

    Raises:
        DataError: see `opened`.
    """
    with opened(file) as stream:
        if file.suffix.lower() not in _COMPRESSED:
            yield stream
            return
        with tempfile.TemporaryFile() as whole:
            shutil.copyfileobj(stream, whole)
            whole.seek(0)
            yield whole
