"""Tasks compared: known angles, flipped labels, and a training of which not a bit changes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from palm.backbone.base import Backbone
from palm.controller.controller import Controller
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.report.charts import minus
from palm.report.page import write_report
from palm.train.events import Transferred
from palm.train.loop import Training
from palm.train.transfer import (
    MIN_COMPARISONS,
    TransferProbe,
    automatic_period,
    cosines,
    num_batches,
)
from palm.train.transfer_report import influences, matrix, median_interval


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def config(folder: Path, **settings: Any) -> dict[str, Any]:
    return tiny.config(folder, "cls", "match", print_every_n_steps=1, **settings)


def tensors(training: Training) -> dict[str, torch.Tensor]:
    return {**training.model.state_dict()}


@pytest.mark.parametrize("settings", [{}, {"tasks_per_step": "all", "use_ema": True, "ema_decay": 0.9}])
def test_comparing_tasks_changes_no_bit_of_the_training(folder: Path, settings: dict[str, Any]) -> None:
    plain, watched = (Controller(config(folder, **settings), argv=[]).training() for _ in range(2))
    probe = TransferProbe(watched, 10)
    for one, other in zip(plain.steps(), watched.steps(), strict=True):
        assert [p.loss.item() for p in one.parts] == [p.loss.item() for p in other.parts]
        grads = [None if p.grad is None else p.grad.clone() for p in watched.model.parameters()]
        state, precision = torch.get_rng_state(), watched.model.precision
        found = probe(other)
        assert (found is None) == (other.number % 10 != 0)
        assert torch.equal(torch.get_rng_state(), state)
        assert (watched.model.training, watched.model.precision) == (True, precision)
        for parameter, grad in zip(watched.model.parameters(), grads, strict=True):
            assert (parameter.grad is None) == (grad is None)
            assert grad is None or torch.equal(grad, parameter.grad)
    ours, theirs = tensors(plain), tensors(watched)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_step_on_a_task_lowers_its_own_loss_by_what_it_was_made_to(folder: Path) -> None:
    training = Controller(config(folder), argv=[]).training()
    found = TransferProbe(training, 1).measure()
    assert [found.cosine[task][task] for task in ("cls", "match")] == pytest.approx([1, 1], abs=1e-5)
    # The other's labels are in balance: its gradient is 0, but for noise, and its loss no line along it.
    assert found.look_ahead["cls"]["cls"] == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("flipped", [False, True])
def test_a_task_with_flipped_labels_has_the_opposite_gradient(folder: Path, flipped: bool) -> None:
    """With two classes, whose head gives 0 and x, the labels' flip turns a loss at x = 0 around."""
    lines = (folder / "match.tsv").read_text(encoding="utf-8").splitlines()
    other = [lines[0], *(str(1 - int(line[0]) if flipped else int(line[0])) + line[1:] for line in lines[1:])]
    (folder / "flipped.tsv").write_text("\n".join(other) + "\n", encoding="utf-8")
    made = tiny.config(folder, "match", batch_size=8)
    match = made["tasks"]["match"]
    made["tasks"]["other"] = {**match, "train_file": str(folder / "flipped.tsv"), "share_rows_with": "match"}
    made |= {"task_instance": ["match", "other"], "task_reuse_tag": ["same", "same"]}
    training = Controller(made, argv=[]).training()
    head = training.tasks[0].head
    with torch.no_grad():  # both labels as likely for every row, so that both gradients are of one size
        head.out.weight[0].neg_()
        head.out.weight[1].copy_(-head.out.weight[0])
        head.out.bias.zero_()
        head.out.weight.mul_(1e-4)
    found = TransferProbe(training, 1).measure()
    assert found.cosine["match"]["other"] == pytest.approx(-1 if flipped else 1, abs=1e-3)


class Linear(Backbone):
    """A sentence is the row of its first word in a table, so the gradient of a teacher's task is known."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.inputs_attr = {"token_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.outputs_attr = {"sentence_embedding": TensorSpec(("batch", hidden_size), torch.float)}
        self.words = torch.nn.Embedding(vocab_size, hidden_size)
        torch.nn.init.zeros_(self.words.weight)

    def forward(self, inputs: Tensors, wanted: Collection[str] | None = None) -> Tensors:
        return {"sentence_embedding": self.words(inputs["token_ids"][:, 1])}


@pytest.mark.parametrize("degrees", [0, 60, 90, 150])
def test_linear_teachers_at_an_angle_have_gradients_at_that_angle(folder: Path, degrees: int) -> None:
    (folder / "numbers.tsv").write_text("label\ttext_a\n" + "1\tanna\n" * 8, encoding="utf-8")
    made = tiny.config(folder, "cls", "match", batch_size=4)
    task = {"reader": "cls", "paradigm": "regression", "dropout_prob": 0.0}
    task["train_file"] = str(folder / "numbers.tsv")
    made |= {"task_instance": ["a", "b"], "tasks": {"a": task, "b": task}}
    made |= {"backbone": f"{__name__}.Linear", "hidden_size": 2, "overwrite": True}
    del made["backbone_config_path"]
    made["vocab_size"] = 40
    training = Controller(made, argv=[]).training()
    angle = math.radians(degrees)
    for task_, teacher in zip(training.tasks, ([1.0, 0.0], [math.cos(angle), math.sin(angle)]), strict=True):
        with torch.no_grad():
            task_.head.out.weight.copy_(torch.tensor([teacher]))
            task_.head.out.bias.zero_()
    found = TransferProbe(training, 1).measure()
    assert found.cosine["a"]["b"] == pytest.approx(math.cos(angle), abs=1e-6)
    assert found.look_ahead["a"]["b"] == pytest.approx(math.cos(angle), abs=0.02)


def test_cosines_of_dot_products() -> None:
    found = cosines(torch.tensor([[4.0, 3.0], [3.0, 9.0]]))
    assert found[0] == pytest.approx([1.0, 0.5])
    assert all(math.isnan(value) for value in cosines(torch.zeros(2, 2))[0])


def comparison(step: int, there: float, back: float) -> Transferred:
    angles = {"a": {"a": math.nan, "b": 0.5}, "b": {"a": 0.5}}
    return Transferred(step, angles, {"a": {"a": 1.0, "b": there}, "b": {"a": back, "b": 1.0}})


def test_a_matrix_says_what_to_keep_to_drop_and_to_try() -> None:
    found = [comparison(k, 0.4 + 0.02 * k, -0.5 - 0.1 * (k % 2)) for k in range(MIN_COMPARISONS)]
    helps, harms = influences(found)
    assert (helps.helper, helps.target, helps.verdict, helps.count) == ("a", "b", "keep", 5)
    assert (harms.verdict, harms.look_ahead, harms.cosine) == ("drop", pytest.approx(-0.5), 0.5)
    assert matrix([helps, harms]) == [
        ["steps on", "for a", "for b"],
        ["a", "", "keep (+0.44, +0.40 to +0.48, of 5)"],
        ["b", "drop (-0.50, -0.60 to -0.50, of 5)", ""],
    ]
    unsure = influences([comparison(k, 0.3 * (k - 2), -0.5) for k in range(MIN_COMPARISONS)])[0]
    few = influences(found[: MIN_COMPARISONS - 1])[1]
    nothing = influences([comparison(k, 0.02 * (k - 2), -0.5) for k in range(MIN_COMPARISONS)])[0]
    assert (unsure.verdict, few.verdict, nothing.verdict) == ("try alone", "try alone", "no effect")
    assert matrix(influences([])) == []


def test_one_comparison_that_is_far_off_does_not_decide() -> None:
    values = [0.5, 0.4, 0.6, 0.5, 0.4, 0.3, -193.5, 0.6, 0.5, -43.9, 0.7, 0.5, 0.4]
    helps, _ = influences([comparison(k, value, 0.0) for k, value in enumerate(values)])
    assert (helps.verdict, helps.look_ahead) == ("keep", 0.5)
    assert (helps.low, helps.high) == (0.3, 0.6)  # the third from either end: 2.2 % lie outside
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]) == (1.0, 6.0)


def known_answers(folder: Path, **settings: Any) -> dict[str, Any]:
    """A task, the same again, with its labels flipped, and with random ones; the last two seldom drawn."""
    rng = random.Random(1)
    words = [f"{rng.choice(tiny.NAMES)} {rng.choice(tiny.COLOURS)}" for _ in range(256)]
    labels = [int(word.endswith(("red", "blue"))) for word in words]
    given = {"base": labels, "same": labels, "flip": [1 - k for k in labels]}
    given["random"] = rng.sample(labels, len(labels))
    for name, own in given.items():
        rows = "".join(f"{label}\t{text}\n" for label, text in zip(own, words, strict=True))
        (folder / f"{name}.tsv").write_text(f"label\ttext_a\n{rows}", encoding="utf-8")
    shape = {**tiny.BACKBONE, "num_hidden_layers": 1}
    (folder / "backbone.json").write_text(json.dumps(shape), encoding="utf-8")
    made = tiny.config(folder, "cls", mix_ratio="1,1,.1,.1", max_seq_len=6, learning_rate=3e-3, **settings)
    task = {**made["tasks"]["cls"], "n_classes": 2}
    made["tasks"] = {name: {**task, "train_file": str(folder / f"{name}.tsv")} for name in given}
    return made | {"task_instance": list(given), "num_epochs": 1000, "max_steps": 108}


@pytest.mark.parametrize("batch_size", [16, 128])
@pytest.mark.parametrize("flip", ["drop", "keep"], ids=["one head", "heads of their own"])
def test_a_duplicate_is_kept_and_labels_at_random_are_not(folder: Path, flip: str, batch_size: int) -> None:
    """With a head of its own, a task with flipped labels teaches the encoder what the task itself does."""
    made = known_answers(folder, batch_size=batch_size, transfer_every_n_steps=9)
    if flip == "drop":
        made["task_reuse_tag"] = ["one"] * 4
    found = {(e.helper, e.target): e for e in Controller(made, argv=[]).train().transfer}
    assert [found[name, "base"].verdict for name in ("same", "flip")] == ["keep", flip]
    assert [found[name, "same"].verdict for name in ("base", "flip")] == ["keep", flip]
    assert found["random", "base"].verdict in ("drop", "no effect")
    assert {each.count for each in found.values()} == {12}


def test_a_run_records_and_reports_it(folder: Path) -> None:
    result = Controller(config(folder, transfer_every_n_steps=8), argv=[]).train()
    lines = [each for each in result.history if each["event"] == "transfer"]
    assert [each["step"] for each in lines] == [8, 16, 24, 32, 40]
    assert lines[0]["look_ahead"]["cls"].keys() == {"cls", "match"}
    assert lines[0]["took"] > 0
    assert "steps on  for cls" in str(result)
    assert {(each.helper, each.target) for each in result.transfer} == {("cls", "match"), ("match", "cls")}
    pytest.importorskip("jinja2")
    page = write_report(folder / "out", predict=False).read_text(encoding="utf-8")
    assert "Transfer between tasks" in page
    assert minus(result.transfer[0].shown) in page


def test_a_run_too_short_for_a_verdict_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Controller(config(folder, transfer_every_n_steps="auto"), argv=[]).train().transfer == []
    (told,) = [each for each in caplog.records if "transfer_every_n_steps" in str(each.msg)]
    assert (told.levelname, told.args) == ("WARNING", (1667, 0, 40, 5, 8))


def test_how_often_it_is_done_by_itself_follows_from_its_passes(folder: Path) -> None:
    training = Controller(config(folder), argv=[]).training()
    assert [num_batches(task.stream) for task in training.tasks] == [
        10,
        10,
    ]  # an epoch; 16 would have 64 rows
    assert automatic_period(training, {}) == math.ceil((3 + 2) * 20 / (0.02 * 3))
    assert TransferProbe(training, "auto").every == 1667
    alone = Controller(tiny.config(folder, "cls", transfer_every_n_steps=5), argv=[])
    with pytest.raises(palm.ConfigError, match=r"transfer_every_n_steps.*one"):
        alone.train()
    with pytest.raises(palm.ConfigError, match=r"transfer_every_n_steps.*auto.*-1"):
        Controller(config(folder, transfer_every_n_steps=-3), argv=[])
