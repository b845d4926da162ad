"""Ordered labels, counts and R-Drop: losses and metrics beside independent ones, and runs from YAML."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import palm
from helpers import tiny
from helpers.reader_files import write_text, write_vocabulary
from palm.core.errors import ConfigError, DataError
from palm.metrics import METRICS, scores_of
from palm.paradigm import Classify, Count, Ordinal
from palm.reader import ClassifyReader
from palm.train.task import opened


def with_gradient(loss: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return loss, torch.autograd.grad(loss, inputs, retain_graph=True)[0]


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
        for ours, expected in zip(
            with_gradient(head.loss(outputs, {"label_ids": labels}), features),
            with_gradient(theirs, features),
            strict=True,
        ):
            torch.testing.assert_close(ours.float(), expected.float(), atol=1e-6, rtol=1e-6)


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
    for ours, expected in zip(
        with_gradient(head.loss(outputs, {"label_values": labels}), features),
        with_gradient(theirs, features),
        strict=True,
    ):
        torch.testing.assert_close(ours.float(), expected.float(), atol=1e-6, rtol=1e-6)
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
def test_yaml_trains_them(tmp_path: Path, paradigm: str, metric: str) -> None:
    folder = tiny.write_files(tmp_path)
    files = {name: str(write_text(folder, f"{name}.tsv", rows_of(paradigm, rows))) for name, rows in
             (("train_file", 96), ("dev_file", 40))}  # fmt: skip
    own = {"n_classes": 3} if paradigm == "ordinal" else {}
    settings = tiny.config(folder, "cls", batch_size=8, num_epochs=8, learning_rate=3e-3, pooling="mean")
    settings["tasks"] = {"cls": {"reader": "cls", "paradigm": paradigm, **own, **files}}
    palm.Controller(settings, argv=[]).train()
    assert palm.load_model(folder / "out" / "cls" / "best_model").evaluate(files["dev_file"])[metric] > 0.7


@pytest.mark.parametrize("is_soft", [False, True])
def test_r_drop_adds_the_divergence_of_two_passes(is_soft: bool) -> None:
    head = Classify(3, 4, r_drop=0.7, soft_labels=is_soft).train()
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 2, -100, 1] * 2)
    target = F.one_hot(labels.clamp(min=0), 3).float() if is_soft else labels
    ours = head.loss({"logits": logits}, {head.target: target})
    terms = []
    for k in range(4):
        if labels[k] < 0 and not is_soft:
            continue
        one, other = logits[k].log_softmax(0), logits[k + 4].log_softmax(0)
        kinds = (
            F.kl_div(one, other, log_target=True, reduction="sum"),
            F.kl_div(other, one, log_target=True, reduction="sum"),
        )
        label = max(int(labels[k]), 0)
        terms.append(-(one[label] + other[label]) / 2 + 0.7 * (kinds[0] + kinds[1]) / 2)
    for found, expected in zip(
        with_gradient(ours, logits), with_gradient(torch.stack(terms).mean(), logits), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    head.eval()
    torch.testing.assert_close(
        head.loss({"logits": logits[:4]}, {head.target: target[:4]}),
        Classify(3, 4, soft_labels=is_soft).loss({"logits": logits[:4]}, {head.target: target[:4]}),
    )


def test_a_batch_has_its_rows_twice_and_a_run_ends(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    reader = ClassifyReader(folder / "vocab.txt", 24, n_classes=4)
    batches = []
    for r_drop in (0.0, 1.0):
        task = palm.Task(
            "cls", reader, Classify(4, 8, r_drop=r_drop), batch_size=4, train_file=folder / "cls.tsv"
        )
        batches += opened(task, seed=0).batches(0)
    plain, twice = batches
    for name, value in plain.items():
        assert torch.equal(twice[name], torch.cat([value, value])), name
    palm.Controller(tiny.config(folder, "cls", **{"cls.r_drop": 1.0}), argv=[]).train()


def test_settings_that_contradict_r_drop_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="focal_gamma"):
        Classify(3, 4, soft_labels=True, focal_gamma=2)
    with pytest.raises(ConfigError, match="r_drop"):
        Classify(3, 4, r_drop=-1)
    folder = tiny.write_files(tmp_path)
    config: Any = tiny.config(folder, "cls", "match")
    rows = folder / "cls.tsv"
    config["tasks"]["match"] = {**config["tasks"]["cls"], "share_rows_with": "cls", "train_file": str(rows)}
    config["tasks"]["match"]["r_drop"] = 1.0
    with pytest.raises(ConfigError, match=r"'match'.*'cls'.*r_drop"):
        palm.Controller(json.loads(json.dumps(config)), argv=[]).train()
