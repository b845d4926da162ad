"""An encoder of a user's own, as ModernBERT is built, from the parts that palm has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from palm.backbone.architecture import Architecture
from palm.backbone.attention import AttentionKind
from palm.backbone.encoder import Encoder
from palm.backbone.layer import GatedFeedForward, PreNorm


class OwnEncoder(Encoder):
    """Rotary positions, norms before the sublayers, gated feed-forward networks, and windows.

    Args:
        window: how far a token sees in most layers.
        global_every: every so many layers, from the lowest, one sees the whole text.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-5}

    @staticmethod
    def architecture(window: int = 2, *, global_every: int = 3) -> Architecture:
        whole, near = AttentionKind(None, 160_000.0), AttentionKind(window, 10_000.0)
        return Architecture(
            positions=None,
            attention=(whole, *[near] * (global_every - 1)),
            layer=PreNorm,
            feed_forward=GatedFeedForward,
        )
