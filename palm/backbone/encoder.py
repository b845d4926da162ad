"""The encoders of the BERT family: embeddings, layers and dropout (Devlin et al. 2019, section 3)."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import reduce
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from palm.backbone.attention import SelfAttention
from palm.backbone.base import BACKBONES, SENTENCE, Pooling, TokenEncoder, pooled
from palm.backbone.cpu_kernels import Dropout
from palm.backbone.packing import Packing
from palm.core.component import (
    PositiveFloat,
    PositiveInt,
    Probability,
    number_problems,
    raise_any,
    type_problems,
)
from palm.core.device import compute_dtype
from palm.core.errors import ConfigError, WiringError, about
from palm.core.layers import ACTIVATIONS, ActivationName, init_weights, layer_norm, linear
from palm.core.saved import Tensors


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


class Embeddings(nn.Module):
    """Sum of the embeddings of a token's word, position, segment (and task), projected to `hidden_size`.

    Args:
        tables: the tables; the first one is that of the words.
        width: width of the tables.
        hidden_size: width of the result.
        dropout_prob: probability of zeroing a feature while training.
        eps: added to the variance in the layer norm.
    """

    def __init__(
        self, tables: Sequence[Table], width: int, hidden_size: int, dropout_prob: float, eps: float
    ) -> None:
        super().__init__()
        self.tables = tables
        for table in tables:
            self.add_module(table.name, nn.Embedding(table.rows, width))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.dropout = Dropout(dropout_prob)
        self.projection = nn.Identity() if width == hidden_size else nn.Linear(width, hidden_size)

    @property
    def word_table(self) -> nn.Parameter:
        """The word embeddings, shared with MLM, [vocabulary, width]."""
        weight = self.get_submodule(self.tables[0].name).weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, inputs: Tensors, packing: Packing) -> Tensor:
        """Embed the packed tokens of `inputs`, [tokens, width], in the dtype that the layers compute in.

        Args:
            inputs: ids, [batch, seq], by name.
            packing: layout of the tokens.

        Raises:
            WiringError: if an id is out of range (on a CPU only; a GPU does not report which one).
        """
        ids = {table.ids: packing.pack(inputs[table.ids]) for table in self.tables if table.ids is not None}
        try:
            vectors = (self._vectors(table, ids) for table in self.tables)
            summed = reduce(torch.add, vectors)
        except IndexError:
            raise WiringError(
                "\n".join(
                    f"{table.ids}: {int(ids[table.ids][bad][0])} is outside "
                    f"0..{table.rows - table.unused - 1}; the backbone has {table.setting} {table.rows}"
                    for table in self.tables
                    if table.ids is not None
                    and (bad := (ids[table.ids] < 0) | (ids[table.ids] >= table.rows - table.unused)).any()
                )
            ) from None
        embedded: Tensor = self.dropout(layer_norm(summed, self.norm).to(compute_dtype(summed)))
        if isinstance(self.projection, nn.Linear):
            embedded = linear(embedded, self.projection)
        return embedded

    def _vectors(self, table: Table, ids: Tensors) -> Tensor:
        """Look up packed ids in a table, [tokens, width]; [width] if all tokens have the same row."""
        embedding = self.get_submodule(table.name)
        assert isinstance(embedding, nn.Embedding)
        if table.ids is None:
            return embedding.weight[0]
        vectors: Tensor = embedding(ids[table.ids] + table.unused if table.unused else ids[table.ids])
        return vectors


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3).

    Args:
        width: width of the tokens, in and out.
        inner_width: width between the layers.
        hidden_act: name of the activation.
    """

    def __init__(self, width: int, inner_width: int, hidden_act: str) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner_width)
        self.outer = nn.Linear(inner_width, width)
        self.activation = ACTIVATIONS[hidden_act]

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, width] to [tokens, width]."""
        return linear(self.activation(linear(tokens, self.inner)), self.outer)


class Layer(nn.Module):
    """Self-attention, then a feed-forward network, each followed by a residual sum and a layer norm.

    Source: Vaswani et al., 2017; Devlin et al., 2018.
    """

    def __init__(
        self, attention: SelfAttention, ffn: FeedForward, width: int, dropout_prob: float, eps: float
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = Dropout(dropout_prob)

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [batch, width] if `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        attended = self.dropout(self.attention(tokens, packing, first_only))
        residual = layer_norm(residual + attended, self.attention_norm)
        return layer_norm(residual + self.dropout(self.ffn(residual)), self.ffn_norm)


E = TypeVar("E", bound="Encoder")


@dataclass(eq=False, repr=False)
class Encoder(TokenEncoder):
    """A Transformer encoder (Vaswani et al., 2017); subclasses add settings and tables.

    An encoder computes only the real tokens of a batch. If only sentence embeddings are wanted, the last
    layer computes only the first token. Within `torch.autocast`, everything between the embeddings' norm and
    the pooler, including the residual stream, has its dtype; the pooler is float32.

    Args:
        hidden_size: width of the token vectors.
        num_hidden_layers: number of layers.
        num_attention_heads: heads per layer; `hidden_size` is a multiple of it.
        vocab_size: number of tokens in the vocabulary.
        max_position_embeddings: maximum sequence length, in tokens.
        hidden_act: activation inside the feed-forward networks.
        hidden_dropout_prob: dropout on embeddings and on the output of each sublayer.
        attention_probs_dropout_prob: dropout on attention weights.
        initializer_range: standard deviation of the normal distribution that initializes the weights.
        intermediate_size: inner width of the feed-forward networks; None for 4 x `hidden_size`.
        layer_norm_eps: added to the variance in layer norms.
        pooling: pooling of tokens to a sentence embedding: `cls` is the first token through the pooler, as in
            PALM; `first` is the first token itself, the `cls` of sentence-transformers; `mean` and `max` are
            over all tokens, without a pooler; `model` uses the pooling of the pretrained directory, as does
            `backbone: auto`, or `cls` if it has none.

    Attributes:
        inner_width: inner width of the feed-forward networks.
        pooler_act: activation of the pooler.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    _: KW_ONLY
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    initializer_range: PositiveFloat = 0.02
    intermediate_size: PositiveInt | None = None
    layer_norm_eps: PositiveFloat = 1e-12
    pooling: Pooling = "cls"

    is_packed = True
    pooler_act: ClassVar[str] = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__(self.pooling)
        if self.hidden_size % self.num_attention_heads:
            line = (
                f": {self.num_attention_heads} heads cannot share hidden_size {self.hidden_size}; "
                "hidden_size must be a multiple of the number of heads"
            )
            raise ConfigError(about("num_attention_heads", line))
        size = self.hidden_size
        tables = self.tables()
        self.inner_width = 4 * size if self.intermediate_size is None else self.intermediate_size
        self.max_tokens = tables[1].rows - tables[1].unused
        dropout = self.hidden_dropout_prob
        # The order of the modules determines the weights of a seed.
        self.embeddings = Embeddings(tables, self.table_width, size, dropout, self.layer_norm_eps)
        self.declare([table.ids for table in tables if table.ids is not None], size)
        self.layers = nn.ModuleList()
        for _ in range(self.num_hidden_layers):
            attention = SelfAttention(size, self.num_attention_heads, self.attention_probs_dropout_prob)
            ffn = FeedForward(size, self.inner_width, self.hidden_act)
            self.layers.append(Layer(attention, ffn, size, dropout, self.layer_norm_eps))
        self.pooler = nn.Linear(size, size) if self.pooling == "cls" else None
        self.pooler_activation = ACTIVATIONS[self.pooler_act]
        self._checkpoints_activations = False
        init_weights(self, self.initializer_range)

    def tables(self) -> Sequence[Table]:
        """Return the embedding tables: that of words, that of positions, and the encoder's others."""
        positions = Table("position", "position_ids", "max_position_embeddings", self.max_position_embeddings)
        return [Table("word", "token_ids", "vocab_size", self.vocab_size), positions]

    @property
    def table_width(self) -> int:
        """The width of the embedding tables."""
        return self.hidden_size

    def set_pooling(self, pooling: str) -> None:
        super().set_pooling(pooling)
        if pooling != "cls":
            self.pooler = None

    @classmethod
    def from_config(cls: type[E], config: Mapping[str, Any]) -> E:
        """Build an encoder from the content of a JSON file of Hugging Face, Google or Paddle.

        Args:
            config: the file's content; keys that are not settings of this class are ignored.

        Raises:
            ConfigError: if settings are missing or invalid; lists all of them.
        """
        return cls(**cls.settings_in(config))

    @classmethod
    def settings_in(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Extract the constructor's arguments from the content of such a file.

        Raises:
            ConfigError: if settings are missing; lists all of them.
        """
        raise_any(type_problems(Mapping, "the content of a JSON file, a mapping", config=config))
        parameters = inspect.signature(cls).parameters
        other_spellings = {cls.aliases[key]: value for key, value in config.items() if key in cls.aliases}
        chosen = other_spellings | {key: value for key, value in config.items() if key in parameters}
        missing = [
            f"{name}: missing in the configuration of {cls.__name__}"
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty and name not in chosen
        ]
        if missing:
            raise ConfigError(missing)
        return chosen

    @property
    def word_table(self) -> nn.Parameter:
        return self.embeddings.word_table

    def encoded(self, inputs: Tensors, packing: Packing, wanted: Collection[str]) -> Tensors:
        embedded = self.embeddings(inputs, packing)
        outputs = {"word_embedding": embedded}
        if not {"encoder_outputs", *SENTENCE}.isdisjoint(wanted):
            # From here on, dtypes are set explicitly: autocast would widen norms and softmax on a GPU.
            with torch.autocast(embedded.device.type, enabled=False):
                outputs |= self._encode(embedded, packing, wanted)
        return outputs

    def checkpoint_activations(self) -> None:
        """Store only the input of each layer for the backward pass, and recompute the rest there.

        Losses and gradients, including dropout, stay the same; a step takes about a third longer.

        Source: Chen et al., 2016, arXiv:1604.06174.
        """
        self._checkpoints_activations = True

    def _encode(self, tokens: Tensor, packing: Packing, wanted: Collection[str]) -> Tensors:
        """Compute `encoder_outputs`, the sentence embedding, or both, as wanted."""
        pools_tokens = self.pooling in ("mean", "max")
        *lower, last = self.layers
        for layer in lower:
            tokens = self._run(layer, tokens, packing, False)
        outputs = {}
        if "encoder_outputs" in wanted or pools_tokens:
            outputs["encoder_outputs"] = self._run(last, tokens, packing, False)  # [tokens, width]
        if not set(SENTENCE).isdisjoint(wanted):
            # If only sentence embeddings are wanted, the last layer's output is not read except at the first
            # token. Skipping the rest makes training with 6 layers 1.11 to 1.13 times as fast; results are
            # equal to 4e-8. A prediction is always made that way, so that it has the same bits with the heads
            # of other tasks as without: with 6 layers, keys and values of the last add 3 % to such a pass.
            if pools_tokens or (outputs and not torch.is_inference_mode_enabled()):
                sentence = pooled(outputs["encoder_outputs"], packing, self.pooling)
            else:
                sentence = self._run(last, tokens, packing, True)  # [batch, width]
            if self.pooler is not None:
                sentence = self.pooler_activation(self.pooler(sentence.to(self.pooler.weight.dtype)))
            outputs[SENTENCE[0]] = sentence
        return outputs

    def parameter_layers(self) -> list[list[str]]:
        """List the embeddings' parameters, then those of each layer; the pooler is omitted."""
        stages: dict[str, nn.Module] = {"embeddings": self.embeddings}
        stages |= {f"layers.{number}": layer for number, layer in enumerate(self.layers)}
        return [
            [f"{place}.{name}" for name, _ in stage.named_parameters()] for place, stage in stages.items()
        ]

    def _run(self, layer: nn.Module, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        if self._checkpoints_activations and torch.is_grad_enabled():
            output: Tensor = checkpoint(layer, tokens, packing, first_only, use_reentrant=False)
        else:
            output = layer(tokens, packing, first_only)
        return output


@BACKBONES.register("bert")
@dataclass(eq=False, repr=False, kw_only=True)
class BERT(Encoder):
    """The encoder of Devlin et al., 2018 (arXiv:1810.04805).

    Args:
        type_vocab_size: number of segments.
        embedding_size: width of the embedding tables, projected to `hidden_size` by a linear layer if
            different, as in small ELECTRAs; None for `hidden_size`.
    """

    type_vocab_size: PositiveInt = 2
    embedding_size: PositiveInt | None = None

    def tables(self) -> Sequence[Table]:
        return [*super().tables(), Table("segment", "segment_ids", "type_vocab_size", self.type_vocab_size)]

    @property
    def table_width(self) -> int:
        return self.hidden_size if self.embedding_size is None else self.embedding_size


@BACKBONES.register("distilbert")
class DistilBERT(Encoder):
    """The encoder of Sanh et al., 2019 (arXiv:1910.01108).

    Published weights have no pooler. It is replaced by the linear layer and ReLU of Hugging Face's DistilBERT
    classifier.
    """

    pooler_act = "relu"
    aliases: ClassVar[Mapping[str, str]] = {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }


@BACKBONES.register("electra")
class ELECTRA(BERT):
    """The encoder of Clark et al., 2020 (arXiv:2003.10555), discriminator or generator, with BERT's settings.

    Published weights have no pooler. It is replaced by the linear layer and GELU of Google's and Hugging
    Face's ELECTRA classifiers.
    """

    pooler_act = "gelu"


@BACKBONES.register("ernie")
@dataclass(eq=False, repr=False, kw_only=True)
class ERNIE(Encoder):
    """The encoder of ERNIE 1.0 and 2.0 (Sun et al., 2019, arXiv:1904.09223 and arXiv:1907.12412).

    Args:
        sent_type_vocab_size: number of sentence types (segments).
        task_type_vocab_size: number of task ids.
        use_task_id: use task embeddings; ERNIE 1.0 has none. Without them, the backbone does not read
            `task_ids`.
    """

    aliases: ClassVar[Mapping[str, str]] = {
        "type_vocab_size": "sent_type_vocab_size",
        "use_task_emb": "use_task_id",
    }

    sent_type_vocab_size: PositiveInt = 2
    task_type_vocab_size: PositiveInt = 3
    use_task_id: bool = True

    def tables(self) -> Sequence[Table]:
        segments = Table("segment", "segment_ids", "sent_type_vocab_size", self.sent_type_vocab_size)
        tasks = Table("task", "task_ids", "task_type_vocab_size", self.task_type_vocab_size)
        return [*super().tables(), segments, *([tasks] if self.use_task_id else [])]


@BACKBONES.register("roberta")
@dataclass(eq=False, repr=False, kw_only=True)
class RoBERTa(Encoder):
    """The encoder of Liu et al., 2019 (arXiv:1907.11692), and of XLM-R.

    Every token belongs to segment 0. Position 0 has row `pad_token_id + 1` of the position table; the rows
    before it are reserved for padding.

    Args:
        max_position_embeddings: rows of the position table; the maximum sequence length is
            `pad_token_id + 1` less.
        type_vocab_size: rows of the segment table; only the first is used.
        pad_token_id: id of the padding token in the vocabulary, and its row in the position table.
    """

    type_vocab_size: PositiveInt = 1
    layer_norm_eps: PositiveFloat = 1e-5
    pad_token_id: int = 1

    def tables(self) -> Sequence[Table]:
        most = self.max_position_embeddings - 1
        expected = f"0 or more, and below max_position_embeddings - 1, which is {most}"
        raise_any(number_problems(expected, lambda pad: 0 <= pad < most, pad_token_id=self.pad_token_id))
        words, positions = super().tables()
        segment = Table("segment", None, "type_vocab_size", self.type_vocab_size)
        return [words, replace(positions, unused=self.pad_token_id + 1), segment]
