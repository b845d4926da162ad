"""Data at a URL, which is copied to the user's cache, verified, and then read like a local file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.files.cache import Cache
from palm.core.files.checksum import checksum
from palm.core.files.untrusted import wrap_read_errors
from palm.core.files.write_errors import REMEDIES
from palm.core.logging import logger

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(?=[^/])")
"""The beginning of a URL; `Path` drops one of its slashes."""

_TAGS = ("ETag", "etag", "generation", "blob_id", "LastModified", "Last-Modified", "mtime", "created")
_FACTS = ("size", *_TAGS, "md5Hash", "Content-MD5", "ChecksumSHA256", "crc32c", "lfs")
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


def _copy_into(store: Any, name: str, about: dict[str, Any], copy: Path) -> None:
    logger.info("%s: copying to your cache", name)
    try:
        store.get_file(name, str(copy))
    except OSError as error:
        if error.errno in REMEDIES:  # an error of the local disk
            raise
        raise DataError(f"{name}: cannot read the data file: {error}") from error
    size = about.get("size")
    has_changed = _about(store, name) != about or (size is not None and copy.stat().st_size != size)
    if has_changed or not _is_as_stated(copy, about):
        raise DataError(f"{name}: the file changed or was truncated while it was being copied; try again")


def _about(store: Any, name: str) -> dict[str, Any]:
    store.invalidate_cache()
    known = {**store.info(name)}
    if "s3" in store.protocol:
        bucket, key, _ = store.split_path(name)
        known |= store.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        tag = known["ETag"].strip('"')
        is_plain = (
            known.get("ServerSideEncryption") in (None, "AES256") and "SSECustomerAlgorithm" not in known
        )
        if is_plain and re.fullmatch("[0-9a-f]{32}", tag):  # not an MD5 after a multipart upload
            known["Content-MD5"] = base64.b64encode(bytes.fromhex(tag)).decode()
    return {
        fact: known[fact] if fact in ("size", "lfs") else str(known[fact])
        for fact in _FACTS
        if known.get(fact)
    }


def _is_as_stated(copy: Path, about: Mapping[str, Any]) -> bool:
    """Compare a copy to the store's checksum of the content; True if the store has none."""
    if "lfs" in about:
        return checksum(copy) == str(about["lfs"]["sha256"])
    for algorithm, fact in (("md5", "md5Hash"), ("md5", "Content-MD5"), ("sha256", "ChecksumSHA256")):
        if fact in about and "-" not in about[fact]:  # with "-", a checksum of the parts' checksums
            return checksum(copy, algorithm) == base64.b64decode(about[fact]).hex()
    if "crc32c" in about:
        from google_crc32c import Checksum  # a dependency of gcsfs

        found = Checksum()
        with copy.open("rb") as file:
            for _ in found.consume(file, 1 << 20):
                pass
        return bool(base64.b64decode(about["crc32c"]) == found.digest())
    if "blob_id" in about:  # git's hash; larger files have "lfs" instead
        content = copy.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == str(about["blob_id"])
    return True
