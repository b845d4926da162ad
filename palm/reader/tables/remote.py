"""Data at a URL, which is copied to the user's cache, verified, and then read like a local file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from palm.core.cache import Cache
from palm.core.errors import DataError
from palm.core.io import REMEDIES, wrap_read_errors
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
