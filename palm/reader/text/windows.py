"""Cut a long text into windows, which are ranges of tokens or words that become rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, starmap

import numpy as np
import numpy.typing as npt


def windows_of(num_tokens: int, capacity: int, stride: int) -> list[range]:
    """Windows that cover a document, each starting `stride` tokens after the previous one.

    Args:
        num_tokens: the length of the document; 0 gives one empty window.
        capacity: the most tokens in a window.
        stride: limited to the capacity, because a larger stride would skip tokens.
    """
    # The last window also starts one stride after the previous one, even if it is not full. This gives the
    # same windows, and therefore the same training rows, as the authors' program.
    step = min(stride, capacity)
    rest = max(0, num_tokens - capacity)
    starts = range(0, rest + step, step)
    return [range(start, min(start + capacity, num_tokens)) for start in starts]


def word_windows(num_subwords: Sequence[int], capacity: int) -> list[range]:
    """Windows that contain every word once, with as many whole words in each as fit.

    Args:
        num_subwords: the number of subwords of every word, at most `capacity`.
        capacity: the most subwords in a window.

    Returns:
        Ranges of words.
    """
    starts = [0]
    used = 0
    for word, count in enumerate(num_subwords):
        if used + count > capacity:
            starts.append(word)
            used = 0
        used += count
    return list(starmap(range, pairwise([*starts, len(num_subwords)])))


def best_context(windows: Sequence[range]) -> list[npt.NDArray[np.bool_]]:
    """Mark the tokens of every window that have more context in it than in any other window.

    The context of a token is the number of tokens on its shorter side, plus a hundredth of the window's
    length; on ties, the earlier window wins.

    Source: Devlin et al., 2018, the authors' SQuAD program (`token_is_max_context`).
    """
    num_tokens = max(window.stop for window in windows)
    # The authors' program compares every token with every window. Applying the windows one after another is
    # linear; a token changes its owner only for a strictly larger context, so ties are resolved the same way.
    best = np.full(num_tokens, -1.0)
    owner = np.zeros(num_tokens, dtype=np.int64)
    for number, window in enumerate(windows):
        left = np.arange(len(window))
        context = np.minimum(left, left[::-1]) + 0.01 * len(window)
        tokens = slice(window.start, window.stop)
        owner[tokens][context > best[tokens]] = number
        best[tokens] = np.maximum(best[tokens], context)
    return [owner[window.start : window.stop] == number for number, window in enumerate(windows)]
