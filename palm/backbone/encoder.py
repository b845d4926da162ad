"""The Transformer encoder that BERT and its kin are: embeddings, layers and pooler, on packed tokens."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from palm.backbone.attending import attend
from palm.backbone.attention import SelfAttention
from palm.backbone.base import Backbone
from palm.backbone.dropout import Dropout
from palm.backbone.embeddings import Embeddings
from palm.backbone.packing import Packing
from palm.backbone.shape import Shape
from palm.core.contract import Tensors, TensorSpec, mismatches
from palm.core.errors import ConfigError, WiringError
from palm.core.layers import ACTIVATIONS, init_weights, linear, normalized
from palm.core.precision import compute_dtype

E = TypeVar("E", bound="Encoder")

SENTENCE = ("sentence_embedding", "sentence_pair_embedding")


class Encoder(Backbone):
    """A post-norm Transformer encoder (Devlin et al., 2018).

    Inside, it works on the real tokens of a batch alone; padding costs nothing but in attention.
    Where only sentence embeddings are wanted, the last layer computes the first token only. Within
    `torch.autocast`, everything between the embeddings' norm and the pooler has its dtype, the residual
    stream too; the pooler is float32.

    Args:
        shape: its measures.
    """

    max_tokens: int

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        words, positions = shape.tables[:2]
        self.max_tokens = positions.rows - positions.unused
        padded, per_row = ("batch", "seq", width), ("batch", width)
        ids = [table.ids for table in shape.tables if table.ids is not None]
        self.inputs_attr = dict.fromkeys(ids, TensorSpec(("batch", "seq"), torch.long))
        self.inputs_attr["input_mask"] = TensorSpec(("batch", "seq"), torch.bool)
        self.outputs_attr = {
            "word_embedding": TensorSpec(padded, torch.float),
            "embedding_table": TensorSpec((words.rows, shape.embedding_width), torch.float),
            "encoder_outputs": TensorSpec(padded, torch.float),
            **{name: TensorSpec(per_row, torch.float) for name in SENTENCE},
        }
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.num_hidden_layers))
        self.pooler = nn.Linear(width, width)
        self.pooler_activation = ACTIVATIONS[shape.pooler_act]
        self._checkpoints_activations = False
        init_weights(self, shape.initializer_range)

    @property
    def inner_width(self) -> int:
        """Inner width of the feed-forward networks."""
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        return first.ffn.inner.out_features

    @classmethod
    def from_config(cls: type[E], config: Mapping[str, Any], phase: str = "train") -> E:
        """The encoder that a JSON file of Hugging Face, Google or Paddle describes.

        Args:
            config: the file's content; keys that are not settings of this class are ignored.
            phase: 'train' or 'predict', as in PaddlePALM 2.x; nothing depends on it.

        Raises:
            ConfigError: if settings are missing or wrong, with all of them.
        """
        return cls(**cls.settings_in(config), phase=phase)  # type: ignore[call-arg]

    @classmethod
    def settings_in(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the constructor that such a file names, by their own names.

        Raises:
            ConfigError: if settings are missing, with all of them.
        """
        parameters = inspect.signature(cls).parameters
        other_spellings = {cls.aliases[key]: value for key, value in config.items() if key in cls.aliases}
        chosen = other_spellings | {key: value for key, value in config.items() if key in parameters}
        missing = [
            f"{name}: the configuration of {cls.__name__} lacks it"
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty and name not in chosen
        ]
        if missing:
            raise ConfigError(missing)
        return chosen

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        """The declared outputs of the declared inputs; where there is padding, they are zero.

        Args:
            inputs: every name of `inputs_attr`; further names are ignored.
            wanted: the outputs that somebody will read; None for all. Only these are computed.

        Raises:
            WiringError: if an input is missing, of another shape or dtype or too long, if a row begins
                with padding, or (on a CPU) if an id lies outside its table.
        """
        self._check(inputs)
        packing = Packing.of(inputs["input_mask"])
        if self._is_compiled_by_size():
            packing = packing.in_few_sizes()
        return self.features(inputs, packing, wanted)

    def features(self, inputs: Tensors, packing: Packing, wanted: Collection[str] | None = None) -> Tensors:
        """`forward` without its checks, on a layout of the batch that the caller has chosen."""
        wanted = set(self.outputs_attr if wanted is None else wanted)
        embedded = self.embeddings(inputs, packing)
        outputs: Tensors = {}
        if "word_embedding" in wanted:
            outputs["word_embedding"] = packing.unpack(embedded)
        if "embedding_table" in wanted:
            outputs["embedding_table"] = self.embeddings.word_table
        if wanted & {"encoder_outputs", *SENTENCE}:
            # From here on dtypes are our own choice: autocast would widen norms and softmax on a GPU.
            with torch.autocast(embedded.device.type, enabled=False):
                outputs |= self._encode(embedded, packing, wanted)
        return outputs

    def checkpoint_activations(self) -> None:
        """Keep only what goes into each layer for the backward pass, and compute the rest there again.

        Losses and gradients stay the same, dropout too; a step takes about a third longer.

        Source: Chen et al., 2016, arXiv:1604.06174.
        """
        self._checkpoints_activations = True

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile every layer with `torch.compile`, for batches of any size, when it is first called.

        Attention itself is left out: it goes through the sequences in Python, or is one kernel already.
        """
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            layer.attention.attend = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]
            layer.compile(*args, **{"dynamic": True, **options})

    def _is_compiled_by_size(self) -> bool:
        words = self.embeddings.word_table
        return words.device.type == "cpu" and compute_dtype(words) == torch.bfloat16

    def _encode(self, tokens: Tensor, packing: Packing, wanted: set[str]) -> Tensors:
        """What of `encoder_outputs` and the sentence embeddings is wanted, from packed tokens."""
        every_token = "encoder_outputs" in wanted
        *lower, last = self.layers
        for layer in lower:
            tokens = self._run(layer, tokens, packing, False)
        tokens = self._run(last, tokens, packing, not every_token)  # [tokens, width] or [batch, width]
        outputs = {"encoder_outputs": packing.unpack(tokens)} if every_token else {}
        if wanted & set(SENTENCE):
            first = tokens[packing.first] if every_token else tokens
            sentence = self.pooler_activation(self.pooler(first.to(self.pooler.weight.dtype)))
            outputs |= {name: sentence for name in SENTENCE if name in wanted}
        return outputs

    def parameter_layers(self) -> list[list[str]]:
        """The embeddings, then the layers; the pooler is in none of them."""
        stages: dict[str, nn.Module] = {"embeddings": self.embeddings}
        stages |= {f"layers.{number}": layer for number, layer in enumerate(self.layers)}
        return [
            [f"{place}.{name}" for name, _ in stage.named_parameters()] for place, stage in stages.items()
        ]

    def _run(self, layer: nn.Module, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        if self._checkpoints_activations and torch.is_grad_enabled():
            again: Tensor = checkpoint(layer, tokens, packing, first_only, use_reentrant=False)
            return again
        output: Tensor = layer(tokens, packing, first_only)
        return output

    def _check(self, inputs: Tensors) -> None:
        given = {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in inputs.items()}
        problems = list(mismatches("backbone", self.inputs_attr, "batch", given))
        if problems:
            raise WiringError("\n".join(problems))
        shapes = {name: tuple(inputs[name].shape) for name in self.inputs_attr}
        if len(set(shapes.values())) > 1:
            raise WiringError(f"the inputs of one batch should have one shape, not {shapes}")
        longest = shapes["input_mask"][1]
        if longest > self.max_tokens:
            raise WiringError(
                f"token_ids: sequences of {longest} tokens are longer than the {self.max_tokens} that the "
                "backbone's max_position_embeddings allows; lower max_seq_len"
            )


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network; each added to its input and normalized."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.layer_norm_eps
        self.attention = SelfAttention(width, shape.num_attention_heads, shape.attention_probs_dropout_prob)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.ffn = FeedForward(width, shape.inner_width, shape.hidden_act)
        self.ffn_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = Dropout(shape.hidden_dropout_prob)

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """[tokens, width] to [tokens, width], or to [batch, width] where `first_only`."""
        residual = tokens[packing.first] if first_only else tokens
        gathered = self.dropout(self.attention(tokens, packing, first_only))
        residual = normalized(residual + gathered, self.attention_norm)
        return normalized(residual + self.dropout(self.ffn(residual)), self.ffn_norm)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, inner_width: int, hidden_act: str) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner_width)
        self.outer = nn.Linear(inner_width, width)
        self.activation = ACTIVATIONS[hidden_act]

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, width] to [tokens, width]."""
        return linear(self.activation(linear(tokens, self.inner)), self.outer)
