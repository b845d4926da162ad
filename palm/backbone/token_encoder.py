"""Base class of encoders that return a vector per token: declarations, checks, pooling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Literal, get_args

import torch
from torch import Tensor

from palm.backbone.base import SENTENCE, Backbone
from palm.backbone.packing import Packing, checked_layout
from palm.core.checks import choice_problems, raise_any
from palm.core.tensor_specs import Tensors, TensorSpec

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
