"""Words as a data file writes them, and their pieces cut into windows of whole words."""

from __future__ import annotations

from collections.abc import Sequence

from palm.reader.text.windows import Window

SEPARATOR = "\x02"
"""The separator of words in PaddlePALM 2.x; a text that has one is not split at spaces."""


def split_words(cell: str) -> list[str]:
    """The words (or labels) of one cell of a table.

    They are separated by U+0002, which may also close the cell, or else by any number of spaces.
    """
    if SEPARATOR in cell:
        return cell.removesuffix(SEPARATOR).split(SEPARATOR)
    return [word for word in cell.split(" ") if word]


def word_windows(num_pieces: Sequence[int], capacity: int) -> list[Window]:
    """Windows that hold every word once, as many whole words in each as fit.

    Args:
        num_pieces: how many pieces every word has, none more than `capacity`.
        capacity: the most pieces in a window.

    Returns:
        Windows counted in words.
    """
    starts = [0]
    used = 0
    for word, pieces in enumerate(num_pieces):
        if used + pieces > capacity:
            starts.append(word)
            used = 0
        used += pieces
    ends = [*starts[1:], len(num_pieces)]
    return [Window(start, end - start) for start, end in zip(starts, ends, strict=True)]
