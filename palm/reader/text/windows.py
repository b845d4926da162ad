"""A long text cut into windows: the ranges of its tokens, or of its words, that are rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, starmap

import numpy as np
import numpy.typing as npt


def windows_of(num_tokens: int, capacity: int, stride: int) -> list[range]:
    """Windows that cover a document, each beginning `stride` tokens after the one before.

    Args:
        num_tokens: length of the document; one empty window if it is 0.
        capacity: the most tokens in a window.
        stride: a stride beyond the capacity would pass over tokens, and counts as the capacity.
    """
    # The last window too begins a stride after the one before, not where it would be full: so the windows,
    # and with them the training rows, are those of the authors' program.
    step = min(stride, capacity)
    beyond = max(0, num_tokens - capacity)
    starts = range(0, beyond + step, step)
    return [range(start, min(start + capacity, num_tokens)) for start in starts]


def word_windows(num_pieces: Sequence[int], capacity: int) -> list[range]:
    """Windows that hold every word once, as many whole words in each as fit.

    Args:
        num_pieces: how many pieces every word has, none more than `capacity`.
        capacity: the most pieces in a window.

    Returns:
        Ranges of words.
    """
    starts = [0]
    used = 0
    for word, pieces in enumerate(num_pieces):
        if used + pieces > capacity:
            starts.append(word)
            used = 0
        used += pieces
    return list(starmap(range, pairwise([*starts, len(num_pieces)])))


def best_context(windows: Sequence[range]) -> list[npt.NDArray[np.bool_]]:
    """For every window, which of its tokens have more context in it than in any other window.

    The context of a token is the number of tokens on its poorer side, plus a hundredth of the
    window's length; the earlier window wins a tie.

    Source: Devlin et al., 2018, the authors' SQuAD program (`token_is_max_context`).
    """
    num_tokens = max(window.stop for window in windows)
    # The authors' program compares every token with every window; here each window is laid over what the
    # earlier ones left, which is linear. Only a greater context takes a token over: ties go as they do there.
    best = np.full(num_tokens, -1.0)
    owner = np.zeros(num_tokens, dtype=np.int64)
    for number, window in enumerate(windows):
        left = np.arange(len(window))
        context = np.minimum(left, left[::-1]) + 0.01 * len(window)
        tokens = slice(window.start, window.stop)
        owner[tokens][context > best[tokens]] = number
        best[tokens] = np.maximum(best[tokens], context)
    return [owner[window.start : window.stop] == number for number, window in enumerate(windows)]
