"""Which tokens of a row a masked language model must guess, and what it sees in their place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

SELECTED = 0.15
MASKED, RANDOM = 0.8, 0.1


class MaskedRow(NamedTuple):
    """A row after masking.

    Args:
        token_ids: what the model sees, int64[tokens].
        positions: the tokens to guess, ascending, int64[masks]; at least one, where there is a word.
    """

    token_ids: Ids
    positions: Ids


def masked_row(
    token_ids: Ids, maskable: Ids, mask_id: int, vocab_size: int, rng: np.random.Generator
) -> MaskedRow:
    """Select 15 % of the tokens; of these 80 % become `[MASK]`, 10 % a random token, 10 % stay.

    Args:
        token_ids: the row, int64[tokens].
        maskable: positions of its words, not of special tokens.
        mask_id: the id of `[MASK]`.
        vocab_size: random tokens have ids from 1 to `vocab_size - 1`.
        rng: decides everything.

    Returns:
        The row as the model sees it. One word is masked where chance selected none.

    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.1, task 1.
    """
    # One number a word and then one a selected word, in this order: with a generator for each row and epoch,
    # the masks are the same in every process and after every resumption.
    positions = maskable[rng.random(len(maskable)) < SELECTED]
    fate = rng.random(len(positions))
    if len(maskable) and not len(positions):  # a row without a mask has no loss; a fate of 0 is `[MASK]`
        positions, fate = rng.choice(maskable, size=1), np.zeros(1)
    seen = token_ids.copy()
    seen[positions[fate < MASKED]] = mask_id
    replaced = positions[(fate >= MASKED) & (fate < MASKED + RANDOM)]
    seen[replaced] = rng.integers(1, vocab_size, size=len(replaced))
    return MaskedRow(seen, positions)
