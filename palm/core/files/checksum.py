"""The checksum of a file of any size."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 17


def checksum(path: Path, algorithm: str = "sha256", length: int = -1) -> str:
    """Return the hexadecimal hash of a file, read block by block.

    Args:
        path: the file.
        algorithm: a name that `hashlib` knows.
        length: number of leading bytes to hash; negative for all.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(_BLOCK if length < 0 else min(_BLOCK, length)):
            digest.update(block)
            length -= len(block) if length > 0 else 0
    return digest.hexdigest()
