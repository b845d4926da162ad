"""Declarative description of an encoder's parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from palm.backbone.attention import AttentionKind, SelfAttention
from palm.backbone.layer import FeedForward, PostNorm
from palm.backbone.shape import Shape, Table
from palm.core.errors import ConfigError


@dataclass(frozen=True)
class LearnedPositions:
    """Learned position embeddings, added to the word embeddings (Devlin et al., 2018).

    Args:
        pad_token_id: last row of the table reserved for padding, as in RoBERTa, where position 0 has the next
            row; None if position 0 has row 0.
    """

    pad_token_id: int | None = None

    def table(self, rows: int) -> Table:
        """Create the table.

        Args:
            rows: number of rows, the setting `max_position_embeddings`.

        Raises:
            ConfigError: if no row is left for tokens.
        """
        pad = -1 if self.pad_token_id is None else self.pad_token_id
        if self.pad_token_id is not None and not 0 <= pad < rows - 1:
            raise ConfigError(
                f"pad_token_id: {pad!r} leaves no position for any token; it should be 0 or more, and below "
                f"max_position_embeddings {rows!r} - 1"
            )
        return Table("position", "position_ids", "max_position_embeddings", rows, unused=pad + 1)


@dataclass(frozen=True)
class Architecture:
    """The parts of an encoder; the defaults are BERT's.

    Args:
        tables: embedding tables besides those of words and positions.
        positions: learned position embeddings; None if only the layers encode positions.
        embedding_size: width of the tables, if it may differ from `hidden_size`.
        pooler_act: activation of the pooler.
        attention: kinds of attention, assigned to the layers cyclically, from the lowest.
        layer: position of the layer norms, `PostNorm` or `PreNorm`.
        feed_forward: `FeedForward` or `GatedFeedForward`.
    """

    tables: tuple[Table, ...] = ()
    positions: LearnedPositions | None = LearnedPositions()
    embedding_size: int | None = None
    pooler_act: str = "tanh"
    attention: tuple[AttentionKind, ...] = (AttentionKind(),)
    layer: type[PostNorm] = PostNorm
    feed_forward: type[FeedForward] = FeedForward

    def layers(self, shape: Shape) -> Iterator[PostNorm]:
        """Build the layers, from the lowest."""
        width = shape.hidden_size
        for kind in itertools.islice(itertools.cycle(self.attention), shape.num_hidden_layers):
            yield self.layer(
                SelfAttention(width, shape.num_attention_heads, shape.attention_probs_dropout_prob, kind),
                self.feed_forward(width, shape.inner_width, shape.hidden_act),
                width=width,
                layer_norm_eps=shape.layer_norm_eps,
                dropout_prob=shape.hidden_dropout_prob,
            )
