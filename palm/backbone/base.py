"""The backbone interface: the reader's tensors in, features out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import nn

from palm.core.component import Component
from palm.core.errors import ConfigError, about
from palm.core.registry import Registry
from palm.core.tensor_specs import Specs, Tensors

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
