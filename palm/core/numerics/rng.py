"""Randomness as a function of position: one generator per (seed, purpose, position), no state to store.

It is the same on every rank and in every worker, and after resuming.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *position: int | str) -> np.random.Generator:
    """Return the generator for one decision; takes about 17 µs.

    Args:
        seed: the run's `random_seed`.
        purpose: the kind of decision: `"mix"`, `"shuffle"`, `"mask"`.
        position: numbers and task names; for masking (task, epoch, row).
    """
    key = repr((seed, purpose, *position)).encode()
    # Python's `hash` of a string differs between processes.
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
