"""Token ids of one or two texts as one sequence, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, cut to fit.

RoBERTa writes `<s> a </s>` and `<s> a </s></s> b </s>`; others what their `tokenizer.json` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from palm.reader.text.tokenizer import Tokenizer


class TokenSequence(NamedTuple):
    """A row's tokens.

    Args:
        token_ids: with special tokens.
        first_segment: how many of them belong to segment 0, separators included; the rest are segment 1.
    """

    token_ids: list[int]
    first_segment: int


def sequence_of(
    tokenizer: Tokenizer, a: Sequence[int], b: Sequence[int] | None, max_seq_len: int
) -> TokenSequence:
    """`[CLS] a [SEP]`, with `b [SEP]` behind it where there is one, of at most `max_seq_len` tokens.

    A single text loses its end. Of two, the longer one loses its last token until both fit, the
    second where they are equally long.
    """
    if b is None:
        ids = tokenizer.row(a[: max_seq_len - 2])
        return TokenSequence(ids, len(ids))
    keep_a, keep_b = fitting_lengths(len(a), len(b), max_seq_len - 2 - tokenizer.separators)
    return TokenSequence(tokenizer.row(a[:keep_a], b[:keep_b]), keep_a + 1 + tokenizer.separators)


def fitting_lengths(a: int, b: int, budget: int) -> tuple[int, int]:
    """Shorten two lengths to a budget: the longer one (b on ties) loses tokens first."""
    excess = max(0, a + b - budget)
    from_longer = min(excess, abs(a - b))
    a, b = (a - from_longer, b) if a > b else (a, b - from_longer)
    rest = excess - from_longer
    return a - rest // 2, b - (rest + 1) // 2
