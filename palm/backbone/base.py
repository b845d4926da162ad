"""What a backbone is: its shape, its inputs and its outputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from palm.backbone.packing import Packing, checked_layout
from palm.core.component import (
    Component,
    Registry,
    choice_problems,
    count_problems,
    dropout_problems,
    positive_problems,
    raise_any,
)
from palm.core.errors import ConfigError, about
from palm.core.layers import activation_problems
from palm.core.tensor_specs import Specs, Tensors, TensorSpec


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


SENTENCE = ("sentence_embedding", "sentence_pair_embedding")
"""Features of the whole text; both are the same tensor, as in PaddlePALM."""


class Backbone(Component, nn.Module):
    """A shared encoder.

    Attributes:
        aliases: name in the JSON files of other libraries -> the constructor's parameter.
        inputs_attr: tensors that it reads from the reader.
        outputs_attr: features that it returns.
        max_tokens: maximum sequence length; None for no limit.
        wants_even_lengths: True if the rows of a training batch should have similar lengths, because padding
            is computed too.
        is_packed: True if it computes only real tokens and accepts the layout of `packing.layout_of`.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    inputs_attr: Specs
    outputs_attr: Specs
    max_tokens: int | None = None
    is_packed: bool = False
    wants_even_lengths: bool = False

    @abstractmethod
    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        """Compute the declared outputs from the declared inputs.

        Args:
            inputs: every name of `inputs_attr`; other names are ignored.
            wanted: the outputs that will be read; None for all. Others may be omitted.
        """

    def head_layers(self, model: str) -> nn.Module | None:  # noqa: ARG002
        """Create the family's layers between the tokens and a head's last layer; None if it has none.

        Args:
            model: the head, as a suffix of class names in `transformers`.
        """
        return None

    def parameter_layers(self) -> list[list[str]]:
        """List the names of the embeddings' parameters, then those of each layer, from the lowest.

        Parameters above the top layer are omitted. Required only by `freeze` and `layerwise_decay`.

        Raises:
            ConfigError: if the encoder does not define its layers.
        """
        raise ConfigError(
            f"{type(self).__name__} does not define the layers of its parameters, which freeze and "
            "layerwise_decay need; add a method parameter_layers"
        )

    def copied_top(self, count: int) -> nn.ModuleDict:  # noqa: ARG002
        """Copy the top `count` layers and all modules above them, for a single task.

        Raises:
            ConfigError: if this is not supported, or if no layer would remain shared.
        """
        raise ConfigError(about("private_layers", f": not supported by {type(self).__name__}; leave it out"))

    def with_top(self, top: nn.ModuleDict) -> Backbone:  # noqa: ARG002
        """Return this backbone with its top replaced by the result of `copied_top`; the rest is shared."""
        raise ConfigError(about("private_layers", f": not supported by {type(self).__name__}; leave it out"))

    def checkpoint_activations(self) -> None:
        """Store fewer activations for the backward pass and recompute them there; results stay the same.

        Raises:
            ConfigError: if this is not supported.
        """
        raise ConfigError(
            about("activation_checkpointing", f": not supported by {type(self).__name__}; leave it out")
        )


BACKBONES: Registry[type[Backbone]] = Registry("backbone", Backbone)


Pooling = Literal["cls", "mean", "max", "model"]
"""The first token, the mean or the maximum of all tokens, or the pooling of the pretrained directory."""


class TokenEncoder(Backbone):
    """Base class of palm's own encoders and of those of the `transformers` library.

    Args:
        pooling: pooling of tokens to a sentence embedding; `model` means `cls` until `set_pooling`.

    Attributes:
        word_table: the word embeddings, shared with MLM, [vocabulary, width].
    """

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        raise_any(choice_problems(get_args(Pooling), pooling=pooling))
        self.pooling: str = "cls" if pooling == "model" else pooling

    @property
    @abstractmethod
    def word_table(self) -> Tensor: ...

    def declare(self, ids: Collection[str], width: int) -> None:
        """Declare ids and a mask as inputs, and features of tokens and texts and the word table as outputs.

        Args:
            ids: names of the inputs that are ids.
            width: width of the token vectors.
        """
        self.inputs_attr = dict.fromkeys(ids, TensorSpec(("batch", "seq"), torch.long))
        self.inputs_attr["input_mask"] = TensorSpec(("batch", "seq"), torch.bool)
        self.outputs_attr = {
            "word_embedding": TensorSpec(("batch", "seq", width), torch.float),
            "embedding_table": TensorSpec(tuple(self.word_table.shape), torch.float),
            "encoder_outputs": TensorSpec(("batch", "seq", width), torch.float),
            **{name: TensorSpec(("batch", width), torch.float) for name in SENTENCE},
        }

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        """Compute the declared outputs from the declared inputs; they are zero in the padding.

        Args:
            inputs: every name of `inputs_attr`, and optionally the tensors of
                `palm.backbone.packing.layout_of`; other names are ignored.
            wanted: the outputs to compute; None for all.

        Raises:
            WiringError: if an input is missing, too long, or has the wrong shape or dtype; if a row begins
                with padding; or (on a CPU only) if an id is out of range.
        """
        packing = checked_layout(inputs, self.inputs_attr, self.max_tokens, self.word_table)
        return self.features(inputs, packing, wanted)

    def features(self, inputs: Tensors, packing: Packing, wanted: Collection[str] | None = None) -> Tensors:
        """Compute `forward` without its checks, with a given layout of the batch."""
        wanted = set(self.outputs_attr if wanted is None else wanted)
        found = {"embedding_table": self.word_table, **self.encoded(inputs, packing, wanted)}
        token_features = wanted & {"word_embedding", "encoder_outputs"}
        found |= {name: packing.unpack(found[name]) for name in token_features}
        if SENTENCE[1] in wanted:
            found[SENTENCE[1]] = found[SENTENCE[0]]
        return {name: found[name] for name in self.outputs_attr if name in wanted}

    @abstractmethod
    def encoded(self, inputs: Tensors, packing: Packing, wanted: Collection[str]) -> Tensors:
        """Compute at least the wanted features except the pair's; token features packed, [tokens, width]."""

    def set_pooling(self, pooling: str) -> None:
        """Replace `pooling: model` by the pooling of a directory of weights: 'cls', 'mean' or 'max'."""
        self.settings["pooling"] = pooling
        self.pooling = pooling


def pooled(tokens: Tensor, packing: Packing, pooling: str) -> Tensor:
    """Pool every row's tokens into one vector.

    Args:
        tokens: packed, [tokens, width].
        packing: layout of the tokens.
        pooling: 'cls', 'mean' or 'max'.

    Returns:
        [batch, width]; float32 for means.
    """
    if pooling == "cls":
        return tokens[packing.first]
    rows = packing.unpack(tokens)  # [batch, seq, width]
    mask = packing.mask[..., None]
    if pooling == "max":
        return rows.masked_fill(~mask, -torch.inf).amax(1)
    return (rows.float() * mask).sum(1) / mask.sum(1)
