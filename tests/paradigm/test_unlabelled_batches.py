"""A batch without any known label has no loss and a gradient of zero."""

from __future__ import annotations

import pytest
import torch

from palm.core.saved import NO_LABEL
from palm.paradigm import Classify, Head, MultiLabel, Ordinal, Ranking, SequenceLabel

HEADS: list[tuple[Head, str, tuple[int, ...]]] = [
    (Classify(3, 8, class_weights=[1.0, 2.0, 3.0]), "label_ids", (4,)),
    (Ordinal(3, 8), "label_ids", (4,)),
    (MultiLabel(3, 8), "label_set", (4, 3)),
    (Ranking(8, learning_strategy="pairwise"), "relevance", (2, 2)),
    (SequenceLabel(3, 8, label_smoothing=0.1), "label_ids", (4, 5)),
    (SequenceLabel(3, 8, use_crf=True), "label_ids", (4, 5)),
]


@pytest.mark.parametrize(("head", "target", "shape"), HEADS, ids=lambda each: type(each).__name__)
def test_its_gradient_is_zero(head: Head, target: str, shape: tuple[int, ...]) -> None:
    features = {
        "sentence_embedding": torch.randn(4, 8),
        "encoder_outputs": torch.randn(4, 5, 8),
        "word_mask": torch.ones(4, 5, dtype=torch.bool),
        "group_rows": torch.arange(4).view(2, 2),
    }
    dtype = head.targets_attr[target].dtype
    loss = head.loss(head(features), {target: torch.full(shape, NO_LABEL, dtype=dtype)})
    loss.nan_to_num().backward()  # as the training step takes a loss of no terms
    gradients = [parameter.grad for parameter in head.parameters() if parameter.grad is not None]
    assert gradients
    assert not any(gradient.any() for gradient in gradients)
