"""Randomness as a function of position: a generator per (seed, purpose, position), nothing to store.

The same on every rank and in every worker, so a resumed run repeats an uninterrupted one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence


class _Key(ISeedSequence):
    """A key as it is. `Philox(key=...)` would first ask the system for entropy that it does not use."""

    def __init__(self, digest: bytes) -> None:
        self._words = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint64) -> npt.NDArray[Any]:
        """The key's two words, which are what a Philox asks for."""
        assert (n_words, dtype) == (len(self._words), np.uint64)
        return self._words


def generator(seed: int, purpose: str, *position: int | str) -> np.random.Generator:
    """The generator of one decision.

    Args:
        seed: the run's `random_seed`.
        purpose: what is drawn: `"mix"`, `"shuffle"`, `"mask"`.
        position: where, as numbers and task names; for masking (task, epoch, row).
    """
    key = repr((seed, purpose, *position)).encode()
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(_Key(digest)))  # type: ignore[arg-type]
