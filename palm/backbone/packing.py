"""Where a padded batch's real tokens lie, so that the encoder can work on them alone.

Of the texts of a usual task, cut at 128 tokens, 61 % of a padded batch is real: packing it made training
in bfloat16 on a CPU 1.4 to 1.6 times as fast, with the same results to 7e-7 in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.errors import WiringError


@dataclass(frozen=True, eq=False)
class Sequences:
    """Consecutive pieces of packed tokens.

    Args:
        offsets: where each begins, and where the last ends, int32[sequences + 1].
        longest: no sequence has more tokens.
        tokens: how many they have together, where others may follow, which mean nothing; None for all.
    """

    offsets: Tensor
    longest: int
    tokens: int | None = None

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Beginning and end of each; a GPU is waited for."""
        edges = self.offsets.tolist()
        return list(pairwise(edges))

    def padded(self) -> tuple[Tensor, Tensor]:
        """Where every token lies if all sequences were as long as the longest, and which of them are real.

        Returns:
            int64 and bool, both [sequences, longest]; what is not real repeats some token.
        """
        places = self.offsets[:-1, None] + torch.arange(self.longest, device=self.offsets.device)
        return places.clamp(max=self.offsets[-1] - 1), places < self.offsets[1:, None]


@dataclass(frozen=True)
class Scope:
    """Which keys a query sees: those of its own sequence.

    Args:
        queries: sequences of queries.
        keys: as many, of keys.
        window: only keys that are at most so many tokens away; None for all.
    """

    queries: Sequences
    keys: Sequences
    window: int | None = None


@dataclass(frozen=True)
class Packing:
    """The layout of one batch, computed once and shared by all layers.

    Args:
        mask: True on real tokens, bool[batch, seq].
        positions: flat positions (`row * seq + column`) of the real tokens, int64[tokens].
        sequences: the rows of the batch.
        spare: how many packed tokens follow the real ones and mean nothing.
        position_ids: the position of every packed token, int64[tokens], where layers ask for it.
    """

    mask: Tensor
    positions: Tensor
    sequences: Sequences
    spare: int = 0
    position_ids: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor, layout: Mapping[str, Tensor] = MappingProxyType({})) -> Packing:
        """The layout of `input_mask`, bool[batch, seq].

        Args:
            mask: True on real tokens.
            layout: what `layout_of` has found, on its device; where that is missing, a GPU is waited for.

        Raises:
            WiringError: if a row does not begin with a real token, which would be its sentence embedding
                (on a CPU; a GPU cannot say it without waiting).
        """
        if POSITIONS in layout:
            positions = layout[POSITIONS]
            return cls(mask, positions, Sequences(layout[OFFSETS], mask.shape[1], len(positions)))
        # The host would wait for a GPU here, at every batch; there, whoever pads on the left gets nonsense.
        if not mask.is_cuda and not bool(mask[:, 0].all()):
            row = int(mask[:, 0].int().argmin())
            raise WiringError(f"input_mask: row {row} begins with padding; its first token must be real")
        lengths = mask.sum(dim=1, dtype=torch.int32)
        offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        positions = mask.flatten().nonzero().squeeze(1)
        return cls(mask, positions, Sequences(offsets, mask.shape[1], len(positions)))

    def in_few_sizes(self) -> Packing:
        """With up to 3 % of spare tokens, so that their numbers recur from batch to batch.

        oneDNN prepares bfloat16 products on a CPU anew for every number of tokens, and a CUDA graph has one.
        """
        return replace(self, spare=spare_tokens(len(self.positions)))

    @cached_property
    def first(self) -> Tensor:
        """Place of every row's first token among the packed ones, int64[batch]."""
        return self.sequences.offsets[:-1].long()

    @cached_property
    def first_only(self) -> Sequences:
        """What is left of the rows where only their first tokens are taken."""
        rows = torch.arange(len(self.mask) + 1, dtype=torch.int32, device=self.mask.device)
        return Sequences(rows, 1)

    def scope(self, first_only: bool, window: int | None) -> Scope:
        """What all tokens, or the first ones of the rows alone, see of their rows, within a window."""
        window = None if window is not None and window >= self.sequences.longest - 1 else window
        return Scope(self.first_only if first_only else self.sequences, self.sequences, window)

    @property
    def is_full(self) -> bool:
        """Whether there is no padding at all."""
        return len(self.positions) == self.mask.numel()

    def pack(self, padded: Tensor) -> Tensor:
        """The real tokens of `padded` [batch, seq, ...], as [tokens, ...]; the spare ones are its first."""
        flat = padded.flatten(0, 1)
        if self.is_full and not self.spare:
            return flat
        return flat.index_select(0, F.pad(self.positions, (0, self.spare)))

    def unpack(self, packed: Tensor) -> Tensor:
        """`packed` [tokens, ...] put back in place, as [batch, seq, ...], with zeros in the padding."""
        if self.spare:
            packed = packed[: -self.spare]
        if not self.is_full:
            empty = packed.new_zeros(self.mask.numel(), *packed.shape[1:])
            packed = torch.index_copy(empty, 0, self.positions, packed)
        return packed.view(*self.mask.shape, *packed.shape[1:])


POSITIONS, OFFSETS = "packed_positions", "packed_offsets"
"""What a batch calls the layout that was found before it went to a GPU."""


def layout_of(mask: Tensor) -> dict[str, Tensor]:
    """Where the real tokens of `input_mask` lie, for `Packing.of` on another device.

    How many they are, the host must know before it can go on; on a GPU it would have to wait for it.

    Args:
        mask: bool[batch, seq], on the CPU.

    Raises:
        WiringError: as `Packing.of`.
    """
    packing = Packing.of(mask)
    return {POSITIONS: packing.positions, OFFSETS: packing.sequences.offsets}


class Padded(Packing):
    """The same batch with its padding left in place, so that no shape depends on values.

    A graph that is exported to other programs needs this. What it computes for real tokens is equal; what
    it computes for padding means nothing.
    """

    @classmethod
    def of(cls, mask: Tensor, layout: Mapping[str, Tensor] = MappingProxyType({})) -> Padded:  # noqa: ARG003
        """The layout of `input_mask`, bool[batch, seq]; every row must begin with a real token."""
        batch, seq = mask.shape
        offsets = seq * torch.arange(batch + 1, dtype=torch.int32, device=mask.device)
        return cls(mask, torch.arange(batch * seq, device=mask.device), Sequences(offsets, seq))

    @property
    def is_full(self) -> bool:
        """As if there were no padding; only attention tells it apart."""
        return True

    @cached_property
    def keys_bias(self) -> Tensor:
        """What is added to the scores of keys: 0 on real ones, -1e9 on padding, float32[batch, 1, 1, seq]."""
        return -1e9 * (~self.mask)[:, None, None, :].float()


def spare_tokens(count: int) -> int:
    """How many more than `count` make one of the 32 sizes from each power of two to the next."""
    return -count % (1 << max(count.bit_length() - 6, 0))
