"""The backbone's side of the contract: the reader's tensors in, features out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import nn

from palm.core.component import Component, Translate, checked_phase, unused
from palm.core.errors import ConfigError
from palm.core.registry import Registry
from palm.core.tensor_specs import Specs, Tensors

SENTENCE = ("sentence_embedding", "sentence_pair_embedding")
"""Features of a whole text; both are the same tensor, as in PaddlePALM."""


class Backbone(Component, nn.Module):
    """A shared encoder.

    Attributes:
        inputs_attr: tensors it takes from the reader.
        outputs_attr: features it gives.
        max_tokens: the longest sequence it takes; None for any.
        wants_even_lengths: True if the rows of a training batch should be of about one length, because it
            computes padding as well.
        is_packed: True if it computes real tokens only, and takes the layout of `packing.layout_of`.
    """

    only_2x: ClassVar[Mapping[str, Translate]] = {"is_pairwise": unused, "phase": checked_phase}
    not_called: ClassVar[Mapping[str, str]] = {
        "build": "override forward(inputs, wanted), or derive from palm.backbone.base_backbone.Backbone"
    }
    inputs_attr: Specs
    outputs_attr: Specs
    max_tokens: int | None = None
    is_packed: bool = False
    wants_even_lengths: bool = False

    @abstractmethod
    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        """The declared outputs of the declared inputs.

        Args:
            inputs: every name of `inputs_attr`; further names are ignored.
            wanted: the outputs that somebody will read; None for all. What nobody reads may be left out.
        """

    def head_layers(self, model: str) -> nn.Module | None:  # noqa: ARG002
        """Build layers for one task between this encoder's tokens and its head's last layer; None for none.

        Args:
            model: the head, as the end of a class's name in `transformers`.
        """
        return None

    def parameter_layers(self) -> list[list[str]]:
        """The names of the embeddings' parameters, then those of each layer, from the lowest.

        What comes after the topmost layer is in none of them. Only freezing and rates by layer ask for it.

        Raises:
            ConfigError: the encoder does not tell.
        """
        raise ConfigError(
            f"{type(self).__name__} does not tell which layer its parameters are in, as freeze and "
            "layerwise_decay need; give it a method parameter_layers"
        )

    def copied_top(self, count: int) -> nn.ModuleDict:
        """Copies of the topmost `count` layers and of what follows them, for one task alone.

        Raises:
            ConfigError: this backbone cannot, or has no more layers than that.
        """
        name = type(self).__name__
        raise ConfigError(f"private_layers: {name} does not know how; leave it out, not {count}")

    def with_top(self, top: nn.ModuleDict) -> Backbone:
        """This backbone with what `copied_top` gave in place of its own; below, it is the same modules."""
        raise ConfigError(f"private_layers: {type(self).__name__} does not know how ({len(top)} parts)")

    def checkpoint_activations(self) -> None:
        """Keep less for the backward pass, and compute it again there; nothing else changes.

        Raises:
            ConfigError: this backbone cannot.
        """
        name = type(self).__name__
        raise ConfigError(f"activation_checkpointing: {name} does not know how; leave it out")


BACKBONES: Registry[type[Backbone]] = Registry("backbone", Backbone)
