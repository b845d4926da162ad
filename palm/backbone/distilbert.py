"""DistilBERT: no segments, other names of settings, another pooler."""

from __future__ import annotations

from typing import ClassVar

from palm.backbone.architecture import Architecture
from palm.backbone.base import BACKBONES
from palm.backbone.encoder import Encoder


@BACKBONES.register("distilbert")
class DistilBERT(Encoder):
    """The encoder of Sanh et al., 2019 (arXiv:1910.01108).

    Published weights have no pooler. Ours is the layer that Hugging Face's DistilBERT classifier
    puts in its place, linear and ReLU.
    """

    aliases: ClassVar[dict[str, str]] = {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }

    @staticmethod
    def architecture() -> Architecture:
        """Another pooler."""
        return Architecture(pooler_act="relu")
