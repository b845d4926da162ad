"""Dimensions of an encoder, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from palm.core.checks import count_problems, dropout_problems, positive_problems, raise_any
from palm.core.errors import about
from palm.core.numerics.layers import activation_problems


@dataclass(frozen=True)
class Table:
    """One embedding table.

    Args:
        name: name of the table; its parameter is `embeddings.<name>.weight`.
        ids: the input with its row numbers; None if every token has row 0.
        setting: the constructor's parameter for `rows`.
        rows: number of rows.
        unused: number of unused first rows; id 0 is the row after them.
    """

    name: str
    ids: str | None
    setting: str
    rows: int
    unused: int = 0


@dataclass(frozen=True)
class Shape:
    """Dimensions and other numbers of an encoder, mostly with the names of BERT's JSON file.

    Args:
        embedding_size: width of the tables, projected to `hidden_size`; None for `hidden_size`.
        pad_token_id: last row of the position table that is reserved for padding, as in RoBERTa; None if
            position 0 has row 0.
        other_tables: embedding tables besides those of words and positions.

    Raises:
        ConfigError: if values are invalid; lists all problems.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    initializer_range: float
    intermediate_size: int | None
    layer_norm_eps: float
    embedding_size: int | None = None
    pad_token_id: int | None = None
    other_tables: tuple[Table, ...] = ()

    @property
    def unused_positions(self) -> int:
        """Number of unused first rows of the position table."""
        return 0 if self.pad_token_id is None else self.pad_token_id + 1

    @property
    def tables(self) -> list[Table]:
        """The embedding tables that are summed; the first one is that of the words."""
        setting = "max_position_embeddings"
        positions = Table(
            "position", "position_ids", setting, self.max_position_embeddings, self.unused_positions
        )
        return [Table("word", "token_ids", "vocab_size", self.vocab_size), positions, *self.other_tables]

    def __post_init__(self) -> None:
        counts = {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 1 if self.intermediate_size is None else self.intermediate_size,
            "embedding_size": 1 if self.embedding_size is None else self.embedding_size,
            **{table.setting: table.rows for table in self.tables},
        }
        problems = count_problems(**counts)
        if not problems and self.hidden_size % self.num_attention_heads:
            problems = [
                about(
                    "num_attention_heads",
                    f": {self.num_attention_heads} heads cannot share hidden_size "
                    f"{self.hidden_size}; hidden_size must be a multiple of the number of heads",
                )
            ]
        pad = self.pad_token_id
        if not problems and pad is not None and not 0 <= pad < self.max_position_embeddings - 1:
            problems.append(
                about(
                    "pad_token_id",
                    f": {pad!r} leaves no position for any token; it should be 0 or more, and "
                    f"below max_position_embeddings {self.max_position_embeddings!r} - 1",
                )
            )
        problems += dropout_problems(
            hidden_dropout_prob=self.hidden_dropout_prob,
            attention_probs_dropout_prob=self.attention_probs_dropout_prob,
        )
        problems += positive_problems(
            initializer_range=self.initializer_range, layer_norm_eps=self.layer_norm_eps
        )
        raise_any([*problems, *activation_problems(self.hidden_act)])

    @property
    def inner_width(self) -> int:
        """Inner width of the feed-forward networks."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size
