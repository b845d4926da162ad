"""The settings of the cross-entropy: against torch's own and the paper's formula, and what refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import palm
from helpers import tiny
from helpers.reader_files import rng_of_row
from palm.core.errors import ConfigError, DataError
from palm.core.saved import NO_LABEL
from palm.paradigm import Classify, Match, SequenceLabel
from palm.paradigm.class_loss import ClassLoss
from palm.reader import ClassifyReader

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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_probabilities_and_its_gradient_are_those_of_the_definition(
    smoothing: float, weights: Any
) -> None:
    generator = torch.Generator().manual_seed(0)
    loss = ClassLoss(4, weights, smoothing)
    for _ in range(10):
        logits = (2 * torch.randn(9, 4, generator=generator)).requires_grad_()
        probs = torch.rand(9, 4, generator=generator).softmax(-1)
        target = ((1 - smoothing) * probs + smoothing / 4).double()
        logs = logits.double() - logits.double().exp().sum(-1, keepdim=True).log()
        theirs = -(target * torch.tensor(weights or [1.0] * 4) * logs).sum(-1).mean()
        ours = loss(logits, probs)
        torch.testing.assert_close(ours, theirs.float(), atol=1e-6, rtol=1e-6)
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


def test_a_run_counts_the_labels_of_its_rows(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    labels = [line[0] for line in (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    given = [10 / labels.count(str(k)) for k in range(4)]
    for name, weights in (("own", "balanced"), ("same", given)):
        settings = {"cls.class_weights": weights, "save_path": str(folder / name)}
        palm.Controller(tiny.config(folder, "cls", **settings), argv=[]).train()
    one, other = (palm.load_model(folder / name / "cls").weights() for name in ("own", "same"))
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_soft_labels_train_a_student(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    path = folder / "soft.tsv"
    path.write_text("label\ttext_a\n[0.5, 0.25, 0.25, 0]\ta red boat\n3\ta lamp\n", encoding="utf-8")
    reader = ClassifyReader(folder / "vocab.txt", 16, n_classes=4, label_type="soft")
    examples = list(reader.read(path, with_targets=True))
    batch = reader.collate(reader.encode(examples, with_targets=True), [1, 0], rng_of_row)
    assert batch["label_probs"].tolist() == [[0, 0, 0, 1], [0.5, 0.25, 0.25, 0]]
    assert [truth["label"] for truth in map(reader.gold, examples)] == [0, 3]
    logits = torch.randn(2, 4)
    ours = Classify(4, 8, soft_labels=True).loss({"logits": logits}, batch)
    expected = -(batch["label_probs"] * F.log_softmax(logits, -1)).sum(-1).mean()
    torch.testing.assert_close(ours, expected)

    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [f"{[float(k == int(line[0])) for k in range(4)]}\t{line[2:]}" for line in lines]
    path.write_text("\n".join(["label\ttext_a", *rows]) + "\n", encoding="utf-8")
    soft = {"cls.label_type": "soft", "cls.soft_labels": True, "cls.train_file": str(path)}
    palm.Controller(tiny.config(folder, "cls", **soft), argv=[]).train()
    palm.Controller(tiny.config(folder, "cls", save_path=str(folder / "hard")), argv=[]).train()
    models = [palm.load_model(folder / name / "cls" / "infer_model") for name in ("out", "hard")]
    one, other = (model.weights() for model in models)
    assert all(torch.allclose(one[name], other[name], atol=1e-4) for name in one)


@pytest.mark.parametrize("cell", ["[0.5, 0.6]", "[1.0]", "[-1, 2]", '["a", 1]', "[0.5"])
def test_probabilities_that_are_none_are_errors_with_their_place(tmp_path: Path, cell: str) -> None:
    folder = tiny.write_files(tmp_path)
    path = folder / "soft.tsv"
    path.write_text(f"label\ttext_a\n{cell}\ta red boat\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"soft\.tsv:2: "):
        list(
            ClassifyReader(folder / "vocab.txt", 16, n_classes=2, label_type="soft").read(
                path, with_targets=True
            )
        )
