"""Embedding: contrastive training of the backbone's sentence embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.component import PositiveFloat, PositiveInt
from palm.core.group import all_rows
from palm.core.saved import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Head
from palm.paradigm.choices import GROUPS, gather_groups
from palm.paradigm.mrc import PADDING_LOGIT


@HEADS.register("embedding")
@dataclass(eq=False, repr=False)
class Embedding(Head):
    """L2-normalized sentence embeddings, compared by cosine similarity; the head has no layers.

    With in_batch, the `text_b` of an example should be closer to its `text_a` than the `text_b` of any other
    example of the step, on all ranks, and than any negative. With similarity, the cosine of both texts should
    equal the label.

    Args:
        hidden_size: width of the backbone's sentence embedding.
        learning_strategy: 'in_batch' for pairs; 'similarity' for pairs with a number (label_type: real).
        scale: factor of the cosines before the softmax over an example's texts.

    Raises:
        ConfigError: if settings are invalid; lists all of them.

    Source: Henderson et al., 2017, "Efficient natural language response suggestion for smart reply", section
    4.4; Reimers and Gurevych, 2019, "Sentence-BERT", section 3, regression objective.
    """

    card = ("sentence-similarity", "text embeddings")
    feature: ClassVar[str] = "sentence_embedding"

    hidden_size: PositiveInt
    learning_strategy: Literal["in_batch", "similarity"] = "in_batch"
    scale: PositiveFloat = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__()
        self.has_labels = self.learning_strategy == "similarity"
        self.inputs_attr = {self.feature: TensorSpec(("batch", self.hidden_size), torch.float), **GROUPS}
        per_text = TensorSpec(("examples", "texts", self.hidden_size), torch.float)
        self.outputs_attr = {"embeddings": per_text, **GROUPS}
        self.targets_attr = {}
        self.metrics = ("retrieval",)
        if self.has_labels:
            self.metrics = ("spearman", "pearson")
            self.targets_attr = {"label_values": TensorSpec(("batch",), torch.float)}

    def forward(self, features: Tensors) -> Tensors:
        """`embeddings` [examples, texts, width] of length 1, and `group_rows`, -1 for padding."""
        rows = features["group_rows"]
        return {
            "embeddings": gather_groups(F.normalize(features[self.feature].float(), dim=-1), rows),
            "group_rows": rows,
        }

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy of each example's `text_b` among all texts; or mean squared error."""
        vectors = outputs["embeddings"]
        if self.has_labels:
            return F.mse_loss((vectors[:, 0] * vectors[:, 1]).sum(-1), targets["label_values"])
        is_text = outputs["group_rows"] >= 0
        if self.training:
            # As in one process with all rows, the texts of other ranks are negatives too.
            vectors = all_rows(vectors)
            is_text = all_rows(is_text)
        # The matching text of each example first, then all negatives.
        others = vectors[:, 1:].transpose(0, 1).flatten(0, 1)
        is_other = is_text[:, 1:].transpose(0, 1).flatten()
        logits = self.scale * vectors[:, 0] @ others.T
        return F.cross_entropy(
            logits.masked_fill(~is_other, PADDING_LOGIT), torch.arange(len(vectors), device=vectors.device)
        )

    def num_terms(self, batch: Tensors) -> int:
        """Count the examples."""
        return len(batch["group_rows"])

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per example `embedding`; with a `text_b`, also `embedding_b` and the cosine of both, `value`."""
        records = []
        counts = (outputs["group_rows"] >= 0).sum(-1).tolist()
        for vectors, count in zip(outputs["embeddings"], counts, strict=True):
            record: dict[str, Any] = {"embedding": vectors[0].tolist()}
            if count > 1:
                cosine = float((vectors[0] * vectors[1]).sum())
                record |= {"embedding_b": vectors[1].tolist(), "value": cosine}
            records.append(record)
        return records
