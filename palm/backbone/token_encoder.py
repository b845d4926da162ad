"""The common part of encoders that give a vector of every token: contract, checks, pooling."""

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
"""The first token, the mean or the maximum of all tokens, or what the pretrained directory says."""


class TokenEncoder(Backbone):
    """Base of palm's own encoders and of those of the `transformers` library.

    Args:
        pooling: how a sentence embedding is made; `model` is `cls` until `set_pooling`.

    Attributes:
        word_table: the parameter that MLM shares, [vocabulary, width].
    """

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        raise_any(choice_problems(get_args(Pooling), pooling=pooling))
        self.pooling: str = "cls" if pooling == "model" else pooling

    @property
    @abstractmethod
    def word_table(self) -> Tensor: ...

    def declare(self, ids: Collection[str], width: int) -> None:
        """Declare ids and a mask as inputs; features of tokens and texts, and the table, as outputs.

        Args:
            ids: names of the inputs that are ids.
            width: of every token's vector.
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
        """Compute the declared outputs of the declared inputs; they are zero where there is padding.

        Args:
            inputs: every name of `inputs_attr`, and optionally the tensors of
                `palm.backbone.packing.layout_of`; further names are ignored.
            wanted: the outputs to compute; None for all.

        Raises:
            WiringError: an input is missing, of another shape or dtype, or too long; a row begins with
                padding; or (on a CPU) an id lies outside its table.
        """
        packing = checked_layout(inputs, self.inputs_attr, self.max_tokens, self.word_table)
        return self.features(inputs, packing, wanted)

    def features(self, inputs: Tensors, packing: Packing, wanted: Collection[str] | None = None) -> Tensors:
        """Compute `forward` without its checks, on a given layout of the batch."""
        wanted = set(self.outputs_attr if wanted is None else wanted)
        found = {"embedding_table": self.word_table, **self.encoded(inputs, packing, wanted)}
        of_tokens = wanted & {"word_embedding", "encoder_outputs"}
        found |= {name: packing.unpack(found[name]) for name in of_tokens}
        if SENTENCE[1] in wanted:
            found[SENTENCE[1]] = found[SENTENCE[0]]
        return {name: found[name] for name in self.outputs_attr if name in wanted}

    @abstractmethod
    def encoded(self, inputs: Tensors, packing: Packing, wanted: Collection[str]) -> Tensors:
        """Compute the wanted features, or more: of tokens packed, [tokens, width]; not the pair's."""

    def set_pooling(self, pooling: str) -> None:
        """Replace `pooling: model` by what a directory of weights says: 'cls', 'mean' or 'max'."""
        self.settings["pooling"] = pooling
        self.pooling = pooling


def pooled(tokens: Tensor, packing: Packing, pooling: str) -> Tensor:
    """Pool every row's tokens into one vector.

    Args:
        tokens: packed, [tokens, width].
        packing: their layout.
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
