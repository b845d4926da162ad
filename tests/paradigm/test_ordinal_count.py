"""Ordered labels and counts: losses and metrics beside independent ones, and runs from YAML."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import palm
from helpers import tiny
from helpers.components import same_with_gradient
from helpers.reader_files import write_text, write_vocabulary
from palm.core.errors import DataError
from palm.metrics import METRICS, scores_of
from palm.paradigm import Count, Ordinal
from palm.reader import ClassifyReader


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_loss_of_ordered_labels_is_that_of_cumulative_links(classes: int) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        head = Ordinal(classes, 4).eval()
        head.count_labels(np.arange(40) ** 2 % classes)
        features = torch.randn(7, 4, requires_grad=True)
        labels = torch.randint(classes, (7,))
        outputs = head({"sentence_embedding": features})
        thresholds = head.lowest + torch.cat([torch.zeros(1), head.log_gaps.exp().cumsum(0)])
        above = torch.sigmoid((features @ head.out.weight.T).double() - thresholds)  # P(label > k)
        ends = torch.cat([torch.ones(7, 1), above, torch.zeros(7, 1)], dim=1)
        probs = ends[:, :-1] - ends[:, 1:]
        torch.testing.assert_close(outputs["probs"].double(), probs, atol=1e-6, rtol=1e-6)
        theirs = -probs[torch.arange(7), labels].log().mean()
        same_with_gradient(head.loss(outputs, {"label_ids": labels}), theirs, features)


def test_ordered_labels_start_from_their_frequencies() -> None:
    head = Ordinal(3, 4).eval()
    head.count_labels(np.array([0] * 5 + [1] * 2 + [2] * 10 + [-100] * 3))
    outputs = head({"sentence_embedding": torch.zeros(1, 4)})
    assert outputs["probs"][0].tolist() == pytest.approx([6 / 20, 3 / 20, 11 / 20])  # each counted once more


def test_the_loss_of_counts_is_half_the_deviance_over_the_dispersion() -> None:
    torch.manual_seed(0)
    head = Count(4).eval()
    head.count_labels(np.array([0.0, 3.0, 6.0], dtype=np.float32))
    features = torch.randn(6, 4, requires_grad=True)
    labels = torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0, 3.0])
    outputs = head({"sentence_embedding": features})
    # Mean 3, variance 6: a dispersion of 2, and a log-normal distribution of variance log(1 + 6 / 9).
    rate = (features @ head.out.weight[0] * np.log(5 / 3) ** 0.5 + np.log(3)).double().exp()
    likelihood = torch.distributions.Poisson(rate, validate_args=False).log_prob(labels)
    highest = torch.distributions.Poisson(labels.double()).log_prob(labels)
    theirs = (highest - likelihood).mean() / 2
    same_with_gradient(head.loss(outputs, {"label_values": labels}), theirs, features)
    assert [record["value"] for record in head.decode(outputs)] == pytest.approx(rate.tolist(), rel=1e-5)


@pytest.mark.parametrize("seed", range(50))
def test_their_metrics_are_those_of_scikit_learn(seed: int) -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 30))
    labels, guesses = rng.integers(0, 5, size), rng.integers(0, 5, size)
    pairs = [({"label": int(g)}, {"label": int(t)}) for g, t in zip(guesses, labels, strict=True)]
    expected = theirs.cohen_kappa_score(labels, guesses, weights="quadratic", labels=[*range(5)])
    assert scores_of([METRICS["qwk"]], pairs)["qwk"] == pytest.approx(1.0 if np.isnan(expected) else expected)
    means = rng.exponential(3, size) + 1e-3
    numbers = [({"value": float(m)}, {"value": float(t)}) for m, t in zip(means, labels, strict=True)]
    found = scores_of([METRICS["poisson_deviance"]], numbers)["poisson_deviance"]
    assert found == pytest.approx(theirs.mean_poisson_deviance(labels, means))


@pytest.mark.parametrize("cell", ["-1", "1.5", "many"])
def test_a_count_is_a_whole_number(tmp_path: Path, cell: str) -> None:
    path = write_text(tmp_path, "bad.tsv", f"label\ttext_a\n2\ta\n{cell}\ta\n")
    reader = ClassifyReader(write_vocabulary(tmp_path), 16, label_type="count")
    with pytest.raises(DataError, match=rf"bad\.tsv:3: .*'{cell}'"):
        list(reader.read(path, with_targets=True))


def rows_of(paradigm: str, rows: int) -> str:
    rng = random.Random(rows)
    lines = []
    for _ in range(rows):
        words = [rng.choice(["red", "boat", "lamp"]) for _ in range(4)]
        label = min(words.count("red"), 2) if paradigm == "ordinal" else words.count("red")
        lines.append(f"{label}\t{' '.join(words)}")
    return "label\ttext_a\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(("paradigm", "metric"), [("ordinal", "qwk"), ("count", "spearman")])
def test_yaml_trains_them(folder: Path, paradigm: str, metric: str) -> None:
    files = {name: str(write_text(folder, f"{name}.tsv", rows_of(paradigm, rows))) for name, rows in
             (("train_file", 96), ("dev_file", 40))}  # fmt: skip
    own = {"n_classes": 3} if paradigm == "ordinal" else {}
    settings = tiny.config(folder, "cls", batch_size=8, num_epochs=8, learning_rate=3e-3, pooling="mean")
    settings["tasks"] = {"cls": {"reader": "cls", "paradigm": paradigm, **own, **files}}
    palm.Controller(settings, argv=[]).train()
    assert palm.load_model(folder / "out" / "cls" / "best_model").evaluate(files["dev_file"])[metric] > 0.7
