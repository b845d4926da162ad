"""Data at an address: copied once to the user's cache, checked, and then read like any other file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.files.door import make_folder, rename
from palm.core.files.locking import locked
from palm.core.files.untrusted import wrap_read_errors
from palm.core.logging import logger

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(?=[^/])")
"""The beginning of an address; a path has lost one of its strokes."""

_FACTS = ("size", "ETag", "etag", "md5", "crc32c", "LastModified", "mtime", "created", "lastCommit")
"""What stores tell of a file and what changes with it."""


def is_address(path: Path) -> bool:
    """Tell whether a path is an address, as `https://` or `s3://`."""
    return _ADDRESS.match(str(path)) is not None


@lru_cache(maxsize=256)
def copies_of(path: Path) -> tuple[Path, ...]:
    """The local copies of the files at an address, a pattern's in the order of their names.

    One process asks the store once, so it reads the same bytes throughout.

    Raises:
        DataError: fsspec or a library of the store is missing, no such file, a connection that breaks off, or
            a file that changes while it is copied.
    """
    address = _ADDRESS.sub(r"\1://", str(path), count=1)
    try:
        import fsspec
    except ImportError:
        raise DataError(f"{address}: addresses need fsspec: pip install 'palm-torch[remote]'") from None
    with wrap_read_errors(address, " the data file", DataError):
        store, name = fsspec.core.url_to_fs(address)
        names = sorted(store.glob(name)) if re.search(r"[*\[]", name) else [name]
        return tuple(_copy(store, each) for each in names)


def _copy(store: Any, name: str) -> Path:
    about = _about(store, name)
    key = hashlib.sha256(json.dumps([str(store.protocol), name, about]).encode()).hexdigest()[:32]
    folder = _folder() / key
    copy = folder / Path(name.split("?")[0]).name
    make_folder(folder)
    with locked(folder / "copy.lock", f"copying {name}"):
        if not copy.is_file():
            logger.info("%s: copied to %s", name, copy)
            part = folder / "copy.part"
            store.get_file(name, str(part))
            size = about.get("size")
            if _about(store, name) != about or (size is not None and part.stat().st_size != size):
                raise DataError(
                    f"{name}: the file has changed, or ended early, while it was copied; try again"
                )
            rename(part, copy)
    return copy


def _about(store: Any, name: str) -> dict[str, Any]:
    store.invalidate_cache()
    known = store.info(name)
    return {fact: known[fact] if fact == "size" else str(known[fact]) for fact in _FACTS if fact in known}


def _folder() -> Path:
    named = os.environ.get("PALM_DATA_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named).expanduser() / "palm-remote"
