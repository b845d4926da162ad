"""The settings of the cross-entropy: against torch's own and the paper's formula, and what refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import palm
from helpers import tiny
from palm.core.errors import ConfigError
from palm.core.saved import NO_LABEL
from palm.paradigm import Classify, Head, Match, MultiLabel, Ordinal, Ranking, SequenceLabel
from palm.paradigm.class_head import ClassLoss

WEIGHTS = [0.5, 2.0, 1.0, 0.0]


def by_hand(logits: Tensor, labels: Tensor, weights: list[float], smoothing: float) -> Tensor:
    log_probs = logits - logits.exp().sum(-1, keepdim=True).log()
    losses = []
    for row, label in zip(log_probs, labels.tolist(), strict=True):
        if label != NO_LABEL:
            target = torch.full((4,), smoothing / 4)
            target[label] += 1 - smoothing
            each = -(target * torch.tensor(weights) * row).sum()
            losses.append(each)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_and_its_gradient_are_those_of_the_definition(smoothing: float, weights: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    loss = ClassLoss(4, weights, smoothing)
    for _ in range(10):
        logits = (2 * torch.randn(9, 4, generator=generator)).requires_grad_()
        labels = torch.randint(4, (9,), generator=generator)
        labels[0] = NO_LABEL
        theirs = by_hand(logits, labels, weights or [1.0] * 4, smoothing)
        ours = loss(logits, labels)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
        gradients = [torch.autograd.grad(each, logits)[0] for each in (ours, theirs)]
        torch.testing.assert_close(*gradients, atol=1e-6, rtol=0)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    labels = np.asarray([0, 0, 0, 1, 2, NO_LABEL, 2])
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(3), y=labels[labels >= 0])
    loss = ClassLoss(3, "balanced")
    loss.count(labels)
    assert loss.weights is not None
    assert loss.weights.tolist() == pytest.approx(expected)


def test_words_have_the_same_settings() -> None:
    head = SequenceLabel(4, 8, class_weights=WEIGHTS, label_smoothing=0.1)
    logits, mask = torch.randn(2, 5, 4), torch.tensor([[0, 1, 1, 0, 0], [0, 1, 1, 1, 0]]).bool()
    labels = torch.randint(4, (2, 5)).masked_fill(~mask, NO_LABEL)
    labels[1, 3] = NO_LABEL
    ours = head.loss({"logits": logits, "word_mask": mask}, {"label_ids": labels})
    expected = by_hand(logits.flatten(0, 1), labels.flatten(), WEIGHTS, 0.1)
    torch.testing.assert_close(ours, expected)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="class_weights: 'even'"):
        Classify(3, 8, class_weights="even")
    with pytest.raises(ConfigError, match=r"class_weights: \[1\].* 3 "):
        Classify(3, 8, class_weights=[1])
    with pytest.raises(ConfigError, match=r"label_smoothing: 1\b"):
        Classify(3, 8, label_smoothing=1)
    with pytest.raises(ConfigError, match="use_crf"):
        SequenceLabel(3, 8, use_crf=True, label_smoothing=0.1)
    with pytest.raises(ConfigError, match="pairwise"):
        Match(learning_strategy="pairwise", label_smoothing=0.1)


def test_a_run_counts_the_labels_of_its_rows(folder: Path) -> None:
    labels = [line[0] for line in (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    given = [10 / labels.count(str(k)) for k in range(4)]
    for name, weights in (("own", "balanced"), ("same", given)):
        settings = {"cls.class_weights": weights, "save_path": str(folder / name)}
        tiny.controller(folder, "cls", **settings).train()
    one, other = (palm.load_model(folder / name / "cls").weights() for name in ("own", "same"))
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


# A batch without any known label has no loss and a gradient of zero.


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
