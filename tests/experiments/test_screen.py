"""The screening of helpers: fits worked out by hand, known helpers ranked, and the command to its end."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from helpers import tiny
from palm.backbone.base import Backbone
from palm.cli import main
from palm.controller.controller import Controller
from palm.core.errors import ConfigError
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.experiments.comparison.outcome import Answer, Outcome
from palm.experiments.comparison.screen import (
    WIDTH,
    chosen_helpers,
    estimates_during,
    estimates_of,
    linearised,
    loss_after,
    projection,
    screened,
)
from palm.experiments.comparison.statistics import paired_difference
from palm.train.loop import Training
from palm.train.transfer import TransferProbe

pytestmark = pytest.mark.usefixtures("loaded_runs")


def rows(*pairs: tuple[float, list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-odds and slopes."""
    return tuple(torch.tensor(values, dtype=torch.float64) for values in zip(*pairs, strict=True))  # type: ignore[return-value]


def test_one_row_is_fitted_as_far_as_its_penalty_lets_it() -> None:
    """At the minimum the sigmoid of -u is penalty * u; u = 2 for this penalty, whatever the slope is."""
    penalty = 1 / (1 + math.exp(2)) / 2
    row = rows((0.0, [3.0, 0.0]))
    assert loss_after([row], row, penalty) == pytest.approx(math.log1p(math.exp(-2)), abs=1e-6)
    across = rows((0.0, [0.0, 3.0]))
    assert loss_after([row], across, penalty) == pytest.approx(math.log(2), abs=1e-9)
    against = rows((0.0, [-3.0, 0.0]))
    assert loss_after([row], against, penalty) == pytest.approx(math.log1p(math.exp(2)), abs=1e-6)


def test_a_helper_along_the_dev_rows_lowers_their_loss_and_one_against_them_does_not() -> None:
    target = rows((1.0, [1.0, 0.0, 0.0]))
    dev = rows((0.0, [1.0, 1.0, 0.0]))
    helpers = {"along": [0.0, 1.0, 0.0], "apart": [0.0, 0.0, 1.0], "against": [0.0, -1.0, 0.0]}
    alone = loss_after([target], dev)
    found = {name: loss_after([target, rows((0.0, slope))], dev) for name, slope in helpers.items()}
    assert found["along"] < 0.6 * alone
    assert alone < found["apart"] < found["against"]


def test_a_projection_keeps_dot_products() -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = (100, 300), (WIDTH - 7,), (5,)
    one, other = ([torch.randn(shape, generator=draw) for shape in shapes] for _ in range(2))
    project = projection([each.numel() for each in one])
    whole = sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))
    length = math.sqrt(sum(float(a.square().sum()) for a in one))
    # The noise of a dot product has the product of both lengths over the root of the width.
    assert float(project(one) @ project(other)) == pytest.approx(whole, abs=4 * length**2 / math.sqrt(WIDTH))
    assert float(project(one).norm()) == pytest.approx(length, rel=0.05)
    few = [None, None, one[2]]
    assert float(project(few).square().sum()) == pytest.approx(float(one[2].square().sum()), rel=1e-6)


class Words(Backbone):
    """A sentence is the row of its first word in a table, so that slopes are known."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.inputs_attr = {"token_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.outputs_attr = {"sentence_embedding": TensorSpec(("batch", hidden_size), torch.float)}
        self.words = torch.nn.Embedding(vocab_size, hidden_size)

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        return {"sentence_embedding": self.words(inputs["token_ids"][:, 1])}


def test_log_odds_of_a_linear_model_are_those_of_its_logits(tmp_path: Path) -> None:
    tiny.write_files(tmp_path)
    (tmp_path / "one.tsv").write_text("label\ttext_a\n" + "1\tanna\n" * 4, encoding="utf-8")
    made = tiny.config(tmp_path, "cls", batch_size=4)
    task = {"reader": "cls", "paradigm": "cls", "n_classes": 2, "dropout_prob": 0.0}
    made |= {"tasks": {"cls": task | {"train_file": str(tmp_path / "one.tsv")}}, "overwrite": True}
    made |= {"backbone": f"{__name__}.Words", "hidden_size": 2, "vocab_size": 40}
    del made["backbone_config_path"]
    training = Controller(made, argv=[]).training()
    (own,) = training.tasks
    sizes = [each.numel() for each in training.model.parameters()]
    odds, slopes = linearised(training, own, own.stream, 9, projection(sizes))
    weights = training.model.state_dict()
    assert own.stream is not None
    word = weights["backbone.words.weight"][own.stream.batch(0)["token_ids"][0, 1]]
    matrix, bias = (weights[name] for name in weights if "out." in name)
    logits = matrix @ word + bias
    steep = matrix[1] - matrix[0]
    assert odds.tolist() == pytest.approx([float(logits[1] - logits[0])], abs=1e-5)
    # d odds / d word, d odds / d weights (the word, for both labels) and d odds / d bias
    square = float(steep.square().sum() + 2 * word.square().sum() + 2)
    assert float(slopes[0] @ slopes[0]) == pytest.approx(square, rel=1e-4)


def with_helpers(folder: Path, num_rows: int = 200, **settings: Any) -> dict[str, Any]:
    """Colours of 24 texts; helpers are `num_rows` more rows, and the same with labels exchanged."""
    tiny.write_files(folder, rows=400)
    head, *lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    labels = [line.split("\t")[0] for line in lines]
    mixed = random.Random(0).sample(labels, len(labels))
    wrong = [f"{label}\t{line.split(chr(9))[1]}" for label, line in zip(mixed, lines, strict=True)]
    files = {
        "few": lines[:24],
        "dev": lines[24:104],
        "test": lines[104:184],
        "same": lines[200 : 200 + num_rows],
        "shuffled": wrong[200 : 200 + num_rows],
    }
    for name, part in files.items():
        (folder / f"{name}.tsv").write_text("\n".join([head, *part]) + "\n", encoding="utf-8")
    made: dict[str, Any] = tiny.config(
        folder, "cls", batch_size=8, learning_rate=5e-3, num_epochs=None, max_steps=60
    )
    task = made["tasks"]["cls"]
    helpers = {name: {**task, "train_file": str(folder / f"{name}.tsv")} for name in ("shuffled", "same")}
    target = {**task, "train_file": str(folder / "few.tsv"), "dev_file": str(folder / "dev.tsv")}
    made |= {"tasks": {"cls": target, **helpers}, "task_instance": ["cls", *helpers], **settings}
    made |= {"target_tag": [1, 0, 0], "mix_ratio": [1, 1, 1]}
    return made


@pytest.fixture
def trained(tmp_path: Path) -> Training:
    training = Controller(with_helpers(tmp_path), argv=[]).training()
    for _ in training.steps():
        pass
    return training


def test_more_rows_of_the_task_rank_above_shuffled_labels(tmp_path: Path, trained: Training) -> None:
    training = Controller(with_helpers(tmp_path, overwrite=True), argv=[]).training()
    first, second = estimates_during(training)
    assert (first.helper, second.helper) == ("same", "shuffled")
    assert first.fall > second.fall
    assert first.look_ahead > second.look_ahead + 0.03
    assert first.cosine > second.cosine + 0.03
    weights = trained.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in training.model.state_dict().items())


def test_estimates_are_the_mean_of_four_moments_of_the_run(tmp_path: Path) -> None:
    made = with_helpers(tmp_path, num_rows=40, max_steps=30, overwrite=True)
    training = Controller(made, argv=[]).training()
    assert training.total_steps == 30
    each = [estimates_of(training) for step in training.steps() if step.number in (8, 15, 23, 30)]
    expected = {
        one.helper: np.mean([other.look_ahead for own in each for other in own if other.helper == one.helper])
        for one in each[0]
    }
    found = estimates_during(Controller(made, argv=[]).training())
    assert {one.helper: one.look_ahead for one in found} == pytest.approx(expected, abs=1e-6)


def test_only_targets_are_judged_and_that_on_dev_rows(trained: Training) -> None:
    found = TransferProbe(trained, -1, ["cls"]).measure()
    assert list(found.look_ahead) == ["cls", "shuffled", "same"]
    assert {key for row in found.look_ahead.values() for key in row} == {"cls"}
    # Its own training rows are others than those of its dev_file, so that even its own angle is above 0.
    assert 0.1 < found.cosine["cls"]["cls"] < 0.999


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        ({"target_tag": [1, 1, 1]}, {}, "target_tag"),
        ({}, {"test": {}}, "--test cls=FILE"),
        ({}, {"test": {"cls": "dev.tsv"}}, "--test cls=FILE"),
        ({}, {"keep": 0}, "keep"),
        ({"stages": [{"tasks": ["cls"]}]}, {}, "stages"),
    ],
)
def test_what_cannot_be_screened_is_refused_before_a_run(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    made = with_helpers(tmp_path) | settings
    chosen = {"keep": 1, "test": {"cls": "test.tsv"}, **options}
    chosen["test"] = {name: tmp_path / file for name, file in chosen["test"].items()}
    with pytest.raises(ConfigError) as caught:
        screened(made, **chosen)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("verdict", "mlm", "kept"),
    [
        ("better", "no difference", ["entities", "mlm"]),
        ("perhaps better", "perhaps harmful", ["entities"]),
        ("no difference", "helpful", []),
        ("worse", "no difference", []),
    ],
)
def test_helpers_are_kept_where_training_with_them_is_better_than_alone(
    verdict: str, mlm: str, kept: list[str]
) -> None:
    effect = paired_difference(np.array([1.0, 1.1]), np.array([[1.0, 1.0], [1.1, 1.1]]))
    answer = Answer("slot", "together", "together", "alone-slot", "alone", "points", effect, verdict=verdict)
    beside = replace(answer, verdict="better", judged=False)  # the weaker of the runs alone
    helpers = {"entities": {"slot": "helpful"}, "mlm": {"slot": mlm}}
    found = Outcome("target", "Equal.", [1, 2], {}, [], [answer, beside], {}, helpers)
    assert chosen_helpers(found, ["entities", "mlm"])[0] == kept


def test_the_command_ends_with_settings_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = with_helpers(tmp_path, max_steps=6)
    del made["overwrite"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    words = ["compare", str(tmp_path / "config.yaml"), "--screen", "1", "--seeds", "2"]
    assert main([*words, "--rows", "8"]) != 0
    assert main([*words, "--test", f"cls={tmp_path / 'test.tsv'}", "--output", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "screen.json").read_text(encoding="utf-8"))
    tried = found["estimates"][0]["helper"]
    tasks = [each["variant"]["tasks"] for each in found["outcome"]["variants"]]
    assert tasks[:2] == [["cls", tried], ["cls"]]
    settings = yaml.safe_load(capsys.readouterr().out.rpartition("Recommended: ")[2].partition("\n")[2])
    assert settings == found["recommended"]
    # Six steps teach nothing, so that no helper is shown to help.
    assert settings == {"task_instance": ["cls"], "target_tag": [1]}
