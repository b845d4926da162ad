"""Where a padded batch's real tokens lie, so that the encoder can work on them alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from palm.errors import WiringError


@dataclass(frozen=True)
class Packing:
    """The layout of one batch, computed once and shared by all layers.

    Args:
        mask: True on real tokens, bool[batch, seq].
        positions: flat positions (`row * seq + column`) of the real tokens, int64[tokens].
        first: place of every row's first token among the packed ones, int64[batch].
    """

    mask: Tensor
    positions: Tensor
    first: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """The layout of `input_mask`, bool[batch, seq].

        Raises:
            WiringError: if a row does not begin with a real token; such a row has no sentence embedding.
        """
        if not bool(mask[:, 0].all()):
            row = int(mask[:, 0].int().argmin())
            raise WiringError(f"input_mask: row {row} begins with padding; its first token must be real")
        lengths = mask.sum(dim=1)
        return cls(mask, mask.flatten().nonzero().squeeze(1), lengths.cumsum(0) - lengths)

    @property
    def is_full(self) -> bool:
        """Whether there is no padding at all."""
        return len(self.positions) == self.mask.numel()

    @property
    def key_mask(self) -> Tensor | None:
        """True where attention may look, bool[batch, 1, 1, seq]; None where it may look everywhere."""
        return None if self.is_full else self.mask[:, None, None, :]

    def pack(self, padded: Tensor) -> Tensor:
        """The real tokens of `padded` [batch, seq, ...], as [tokens, ...]."""
        flat = padded.flatten(0, 1)
        return flat if self.is_full else flat.index_select(0, self.positions)

    def unpack(self, packed: Tensor) -> Tensor:
        """`packed` [tokens, ...] put back in place, as [batch, seq, ...], with zeros in the padding."""
        if not self.is_full:
            empty = packed.new_zeros(self.mask.numel(), *packed.shape[1:])
            packed = torch.index_copy(empty, 0, self.positions, packed)
        return packed.view(*self.mask.shape, *packed.shape[1:])
