"""The files of tables and of chosen rows: found by their names, here or elsewhere, and bounded while read."""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import json
import lzma
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from palm.config.files import full_url, public
from palm.core.cache import Cache, is_cached
from palm.core.errors import DataError
from palm.core.io import (
    POINTER,
    REMEDIES,
    checksum,
    is_pointer,
    parse_json,
    read_bytes,
    stays_inside,
    wrap_read_errors,
    write_text,
)
from palm.core.logging import logger

MAX_CELL = "PALM_MAX_CELL"
"""Environment variable with the limit of `max_cell` in MiB."""

WHOLE = 16
"""A compressed file that is read as a whole may be this many times as large as a cell."""

SILENCE = 60.0
"""Seconds without an answer after which a download fails, however long it takes as a whole."""

# On Windows, a `Path` has backslashes; everywhere, it drops one of two slashes.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):[\\/]+(?=[^\\/])")

# A URL may contain commas.
_NEXT = re.compile(r",(?=\s*(?:[a-z][a-z0-9+.-]+:[\\/]|[\\/]|[A-Za-z]:\\))")

_VERSIONS = ("ETag", "etag", "generation", "blob_id", "LastModified", "Last-Modified", "mtime", "created")
"""Metadata of stores that changes when the content of a file changes."""


def max_cell() -> int:
    """Return the maximum number of bytes of a row's text, 16 MiB by default; a row has to fit into memory.

    Raises:
        DataError: the environment variable is not a number above 0.
    """
    given = os.environ.get(MAX_CELL, "16")
    if not given.isdecimal() or not int(given):
        raise DataError(f"{MAX_CELL} should be a number of MiB, not {given!r}")
    return int(given) << 20


def too_large(place: str, what: str, limit: int) -> DataError:
    """Return the error for something that exceeds a limit."""
    remedy = f"check the file, or raise {MAX_CELL}, which is {max_cell() >> 20} (MiB)"
    return DataError(f"{place}: {what} has more than {limit >> 20} MiB; {remedy}")


def is_url(path: Path) -> bool:
    """Check whether a path is a URL of a file elsewhere, such as `https://…` or `s3://…`."""
    found = _URL.match(str(path))
    return found is not None and found[1] != "file"


@lru_cache(maxsize=256)
def copies_of(path: Path) -> tuple[Path, ...]:
    """The local copies of the files at a URL; those of a pattern are sorted by name.

    A process queries the store only once, so it always reads the same bytes.

    Raises:
        DataError: fsspec or the store's library is not installed, no such file, a broken connection, or a
            file that changes while it is copied.
    """
    url = _URL.sub(r"\1://", full_url(path.as_posix()), count=1)
    if "?…" in url:
        raise DataError(
            f"{url}: the query of this URL was not stored, as it may be secret; give the whole URL"
        )
    try:
        import fsspec
    except ImportError:
        raise DataError(f"{public(url)}: URLs need fsspec: pip install 'palm-torch[remote]'") from None
    try:
        with wrap_read_errors(url, " the data file", DataError):
            store, name = fsspec.core.url_to_fs(url, **_patience(url))
            # Brackets are those of an IPv6 address.
            names = sorted(store.glob(name)) if "*" in name else [name]
            return tuple(_copy(store, each) for each in names)
    except DataError as error:
        reason = error.__cause__ and error.__cause__.__cause__  # HTTP stores wrap the status
        raise DataError(public(f"{error}{f' ({reason})' if reason else ''}")) from None


def _patience(url: str) -> dict[str, Any]:
    if not url.startswith("http"):
        return {}
    from aiohttp import ClientTimeout

    return {"client_kwargs": {"timeout": ClientTimeout(sock_connect=SILENCE, sock_read=SILENCE)}}


def _copy(store: Any, name: str) -> Path:
    about = _about(store, name)
    key = [str(store.protocol), name, about]
    if about.keys() <= {"size"}:  # changes cannot be detected, so only this process may use the copy
        key.append(f"{os.getpid()} {time.time_ns()}")
    named = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    copy = partial(_copy_into, store, name, about)
    return Cache.of_anyone().file(named, Path(name.split("?")[0]).name, public(name), copy)


def _copy_into(store: Any, name: str, about: dict[str, str], copy: Path) -> None:
    logger.info("%s: copying to your cache", public(name))
    try:
        store.get_file(name, str(copy))
    except OSError as error:
        if error.errno in REMEDIES:  # an error of the local disk
            raise
        raise DataError(f"{name}: cannot read the data file: {error}") from error
    size = str(copy.stat().st_size)
    if _about(store, name) != about or about.get("size", size) != size:
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


def is_compressed(file: Path) -> bool:
    """Check whether a file is compressed as a whole, by its suffix."""
    return file.suffix.lower() in _COMPRESSED


def format_of(file: Path) -> TableFormat | None:
    """The format given by the suffix of a file, apart from `.gz` and the like; None for other suffixes."""
    name = file.with_suffix("") if is_compressed(file) else file
    return FORMATS.get(name.suffix.lower())


def parts_of(path: Path) -> list[Path]:
    """The paths and URLs that a path lists, separated by commas.

    Raises:
        DataError: nothing between two commas, or beside one.
    """
    text = str(path)
    parts = [part.strip() for part in (_NEXT.split(text) if _URL.match(text) else text.split(","))]
    if "" in parts:
        raise DataError(f"{public(text)}: there is nothing before, after or between commas; remove the comma")
    # A URL of this machine: `file:///data/a.csv`.
    return [Path(re.sub(r"^file:[\\/]+(?=[A-Za-z]:)|^file:(?=[\\/])", "", part)) for part in parts]


def files_of(path: Path) -> list[Path]:
    """The local files of a table, each once; those of a folder or pattern are sorted by name.

    Args:
        path: a file, a folder, a pattern such as `part-*.csv`, a URL, which is downloaded first, or several
            of these, separated by commas.

    Raises:
        DataError: there are none, or they cannot be looked up.
    """
    found: dict[Any, Path] = {}
    with wrap_read_errors(public(str(path)), " the data file", DataError):
        if path.is_file():
            return [path]
        for part in [path] if path.is_dir() else parts_of(path):
            here = _files_at(part)
            if not here:
                raise DataError(f"{path}: cannot read the data file ({missing_reason(part)})")
            for file in here:  # two names may be those of one file
                status = file.stat()
                found.setdefault((status.st_dev, status.st_ino), file)
    return list(found.values())


def _files_at(path: Path) -> list[Path]:
    if is_url(path):
        return list(copies_of(path))
    if path.is_dir():
        return _files_in(path)
    if path.is_file():
        return [path]
    return [Path(name) for name in sorted(glob.glob(str(path))) if Path(name).is_file()]  # noqa: PTH207


def missing_reason(path: Path) -> str:
    """The reason why there is no data at a path, for messages."""
    if path.is_dir():
        return "no table in this folder"
    return "not a regular file" if path.exists() else "no such file"


def _files_in(folder: Path) -> list[Path]:
    """The tables in a folder; in one saved by Hugging Face's `datasets`, the files listed in its state."""
    state = folder / "state.json"
    if state.is_file():
        with wrap_read_errors(state, " the list of files", DataError):
            listed = parse_json(read_bytes(state))["_data_files"]
            parts = [folder / Path(part["filename"]).name for part in listed]
        if missing := [part.name for part in parts if not part.is_file()]:
            raise DataError(f"{state}: it lists {missing[0]}, which is missing; copy the folder again")
        return parts
    files = (file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())
    return sorted(file for file in files if format_of(file) is not None)


def is_data(path: Path) -> bool:
    """Check whether there is a data file or table at a path; URLs are assumed to exist."""
    try:
        return is_url(path) or bool(files_of(path))
    except (DataError, OSError, ValueError):  # for example, a name that is too long
        return False


def digest_of(files: Sequence[Path], algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a file's bytes, or the hash of several files' hashes.

    Raises:
        DataError: a file cannot be read.
    """
    parts = []
    for file in files:
        with wrap_read_errors(file, " the data file", DataError):
            parts.append(checksum(file, algorithm))
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


def lines_of(stream: IO[bytes], file: Path) -> Iterator[bytes]:
    """The lines of a data file with their ends.

    Raises:
        DataError: a line is too long.
    """
    limit = max_cell()
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit:
            raise too_large(f"{file}:{number}", "the line", limit)
        yield line


def content_of(file: Path) -> bytes:
    """The whole content of a data file.

    Raises:
        DataError: see `opened`, or it is compressed and too large.
    """
    with opened(file) as stream:
        limit = WHOLE * max_cell()
        content = stream.read(limit + 1 if is_compressed(file) else -1)
        if is_compressed(file) and len(content) > limit:
            raise too_large(str(file), "the decompressed file", limit)
        return content


# Chosen rows of a table

SUFFIX = ".rows.json"
_FORMAT = "palm-rows"


@dataclass(frozen=True)
class Selection:
    """The selected rows of a table.

    Args:
        table: the path of the table.
        sha256: the checksum of the table's files.
        rows: indices of the selected rows among the readable ones.
        settings: the settings that selected the rows.
    """

    table: Path
    sha256: str
    rows: Sequence[int]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A hash of the table's bytes and the rows, independent of paths."""
        return hashlib.sha256(json.dumps([self.sha256, list(self.rows)]).encode()).hexdigest()

    @property
    def text(self) -> str:
        """The content of the selection's file."""
        content = {"format": _FORMAT, "version": 1, **vars(self)}
        return json.dumps(content, ensure_ascii=False, default=str) + "\n"


def keep_selection(name: str, text: str) -> Path:
    """Return the file of a selection in the cache, which makes every file with this content this user's."""
    # Named by content, so that processes and runs with the same choice share one file.
    write = partial(write_text, text=text)
    return Cache.of_anyone().file(_kept_as(name, text), name, f"the rows of {name}", write)


def _kept_as(name: str, text: str) -> str:
    return hashlib.sha256(os.fsencode(f"{name}\n{text}")).hexdigest()[:32]


def is_selection(path: Path) -> bool:
    """Check whether a path is that of a selection."""
    return path.name.endswith(SUFFIX)


def read_selection(path: Path) -> Selection:
    """Read the file of a selection.

    Raises:
        DataError: the file cannot be read, is not a selection, or is someone else's and names a
            table that is not in its folder.
    """
    return _read(path, path.is_file() and file_facts(path))


@lru_cache(maxsize=16)
def _read(path: Path, facts: object) -> Selection:  # noqa: ARG001 - part of the cache key
    with wrap_read_errors(path, " the selected rows", DataError):
        content = parse_json(path.read_bytes())
        are_rows = all(type(row) is int and 0 <= row < sys.maxsize for row in content["rows"])
        if content["format"] != _FORMAT or not are_rows:
            raise ValueError("not a selection of rows written by palm")
        selection = Selection(Path(content["table"]), content["sha256"], content["rows"], content["settings"])
        _check_named(path, selection.table)
        return selection


def _check_named(path: Path, table: Path) -> None:
    """Refuse the selection of someone else that names a table which is not in its folder."""
    if is_cached(_kept_as(path.name, path.read_text("utf-8")), path.name):
        return
    if is_remote(table) or not all(stays_inside(path.parent, file) for file in files_of(table)):
        raise DataError(
            f"{path}: it names {public(str(table))}, which is not in its folder, and you have not chosen "
            "these rows yourself; copy the table there, or use the configuration of the run (palm check)"
        )


def chosen_of(path: Path, files: Sequence[Path]) -> Iterator[bool]:
    """Yield for each of the table's rows whether it is selected, up to the last one that is.

    Args:
        path: the file of the selection.
        files: the files of the table.

    Raises:
        DataError: the table has changed since the selection.
    """
    selection = read_selection(path)
    if _digest(tuple(files), tuple(map(file_facts, files))) != selection.sha256:
        raise DataError(
            f"{selection.table}: the table has changed since its rows were selected ({path}); restore the "
            "table, or train again from scratch"
        )
    # Not a mask: the file may name a row that would need any amount of memory.
    gaps = np.diff(np.unique(np.asarray(selection.rows, dtype=np.int64)), prepend=-1).tolist()
    return chain.from_iterable(chain(repeat(False, gap - 1), (True,)) for gap in gaps)


@lru_cache(maxsize=16)
def _digest(files: tuple[Path, ...], facts: object) -> str:  # noqa: ARG001 - part of the cache key
    return digest_of(files)


def data_checksum(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a data file's bytes or of a selection; see `digest_of`.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    return read_selection(path).key if is_selection(path) else digest_of(files_of(path), algorithm)


def table_of(path: Path) -> Path:
    """The table of a selection; any other path is returned unchanged.

    Raises:
        DataError: see `read_selection`.
    """
    return read_selection(path).table if is_selection(path) else path


def shown_path(path: Path) -> str:
    """Return a table's path for people; that of a selection is the user's table, with the rows' choice."""
    if not is_selection(path):
        return str(path)
    selection = read_selection(path)
    part = path.name.removesuffix(SUFFIX).rpartition(".")[2]
    return f"{selection.table} ({part} rows, chosen by {', '.join(selection.settings)})"


def shown_name(path: Path) -> str:
    """Return the name of a table without its folder; that of a selection with the part of its rows."""
    part = path.name.removesuffix(SUFFIX).rpartition(".")[2]
    return f"{table_of(path).name} ({part})" if is_selection(path) else path.name


def is_remote(path: Path) -> bool:
    """Check whether a URL is among the files of a table or selection."""
    return any(map(is_url, parts_of(table_of(path))))


def sources_of(path: Path) -> list[Path]:
    """The local files of a table or selection, and that of the selection; nothing is downloaded."""
    table = table_of(path)
    return [path, *([] if is_remote(path) or not is_data(table) else files_of(table))]
