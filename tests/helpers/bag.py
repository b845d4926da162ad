"""An encoder without layers, for tests of everything else: graphs of its heads, plans of its runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from palm.backbone.base import TokenEncoder, pooled
from palm.backbone.packing import Packing
from palm.core.saved import Tensors


class Bag(TokenEncoder):
    """The vectors of words and positions, of width 16, and their mean.

    Args:
        vocab_size: number of words.
    """

    max_tokens = 40

    def __init__(self, vocab_size: int = 40) -> None:
        super().__init__("mean")
        self.words = nn.Embedding(vocab_size, 16)
        self.places = nn.Embedding(self.max_tokens, 16)
        self.declare(["token_ids", "position_ids"], 16)

    @property
    def word_table(self) -> Tensor:
        return self.words.weight

    def encoded(self, inputs: Tensors, packing: Packing, wanted: Collection[str]) -> Tensors:
        words, places = packing.pack(inputs["token_ids"]), packing.pack(inputs["position_ids"])
        tokens = self.words(words) + self.places(places)
        text = pooled(tokens, packing, "mean")
        return {"word_embedding": self.words(words), "encoder_outputs": tokens, "sentence_embedding": text}


def with_bag(config: dict[str, Any]) -> dict[str, Any]:
    """The same run with this encoder."""
    bag = {"backbone": f"{__name__}.Bag", "hidden_size": 16, "vocab_size": 40}
    return {name: value for name, value in config.items() if name != "backbone_config_path"} | bag
