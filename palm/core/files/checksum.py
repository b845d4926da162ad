"""The checksum of a file of any size."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 20


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a file's bytes, read a block at a time.

    Args:
        path: the file.
        algorithm: a name that `hashlib` knows.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
