"""Base classes of backbones: their inputs and outputs."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from palm.backbone.packing import Packing, checked_layout
from palm.core.component import Component, Registry
from palm.core.errors import ConfigError, about
from palm.core.saved import Specs, Tensors, TensorSpec

M = TypeVar("M", bound=nn.Module)

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

    def checkpoint_activations(self) -> None:
        """Store fewer activations for the backward pass and recompute them there; results stay the same.

        Raises:
            ConfigError: if this is not supported.
        """
        problem = f": not supported by {type(self).__name__}; leave it out"
        raise ConfigError(about("activation_checkpointing", problem))


BACKBONES: Registry[type[Backbone]] = Registry("backbone", Backbone)


Pooling = Literal["cls", "first", "mean", "max", "model"]
"""The first token through a pooler or as it is, the mean or the maximum of all tokens, or the pooling of the
pretrained directory."""


class TokenEncoder(Backbone):
    """Base class of palm's own encoders and of those of the `transformers` library.

    Args:
        pooling: pooling of tokens to a sentence embedding; `model` means `cls` until `set_pooling`.

    Attributes:
        word_table: the word embeddings, shared with MLM, [vocabulary, width].
    """

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
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
        """Replace `pooling: model` by the pooling of a directory of weights."""
        self.settings["pooling"] = pooling
        self.pooling = pooling


def pooled(tokens: Tensor, packing: Packing, pooling: str) -> Tensor:
    """Pool every row's tokens into one vector.

    Args:
        tokens: packed, [tokens, width].
        packing: layout of the tokens.
        pooling: 'cls' and 'first' (the same here), 'mean' or 'max'.

    Returns:
        [batch, width]; float32 for means.
    """
    if pooling in ("cls", "first"):
        return tokens[packing.first]
    rows = packing.unpack(tokens)  # [batch, seq, width]
    mask = packing.mask[..., None]
    if pooling == "max":
        return rows.masked_fill(~mask, -torch.inf).amax(1)
    return (rows.float() * mask).sum(1) / mask.sum(1)


def with_modules(module: M, replaced: Mapping[str, nn.Module]) -> M:
    """Return a module that shares all parts except the replaced modules, given by name."""
    # Modules on the path are copied shallowly.
    own = copy.copy(module)
    own._modules = dict(module._modules)
    below: dict[str, dict[str, nn.Module]] = {}
    for name, value in replaced.items():
        child, _, rest = name.partition(".")
        below.setdefault(child, {})[rest] = value
    for child, values in below.items():
        part = module._modules[child]
        assert part is not None
        own._modules[child] = values[""] if "" in values else with_modules(part, values)
    return own
