"""Tasks compared: known angles, flipped labels, and a training of which not a bit changes."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from palm.backbone.base import Backbone
from palm.controller import Controller
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.engine.training.events import Transferred
from palm.engine.training.loop import Training
from palm.engine.training.transfer import TransferProbe, automatic_period, cosines
from palm.engine.watching.transfer_report import influences, matrix
from palm.report.page import write_report


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
    probe = TransferProbe(watched, 3)
    for one, other in zip(plain.steps(), watched.steps(), strict=True):
        assert [p.loss.item() for p in one.parts] == [p.loss.item() for p in other.parts]
        grads = [None if p.grad is None else p.grad.clone() for p in watched.model.parameters()]
        state, precision = torch.get_rng_state(), watched.model.precision
        found = probe(other)
        assert (found is None) == (other.number % 3 != 0)
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
    assert list(found.layers) == ["embeddings", "layer 1", "layer 2"]
    for task in ("cls", "match"):
        assert found.cosine[task][task] == pytest.approx(1, abs=1e-5)
        assert found.look_ahead[task][task] == pytest.approx(1, abs=0.05)


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
    assert found.layers["layer 1"]["other"]["match"] == pytest.approx(-1 if flipped else 1, abs=1e-3)


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
    assert found.layers == {}


def test_cosines_of_dot_products() -> None:
    found = cosines(torch.tensor([[4.0, 3.0], [3.0, 9.0]]))
    assert found[0] == pytest.approx([1.0, 0.5])
    assert all(math.isnan(value) for value in cosines(torch.zeros(2, 2))[0])


def comparison(step: int, there: float, back: float) -> Transferred:
    angles = {"a": {"a": math.nan, "b": 0.5}, "b": {"a": 0.5}}
    return Transferred(step, angles, {}, {"a": {"a": 1.0, "b": there}, "b": {"a": back, "b": 1.0}})


def test_a_matrix_says_what_to_keep_to_drop_and_to_try() -> None:
    found = [comparison(k, 0.4 + 0.02 * k, back) for k, back in enumerate([-0.5, -0.4, -0.6])]
    helps, harms = influences(found)
    assert (helps.helper, helps.target, helps.verdict, helps.count) == ("a", "b", "keep", 3)
    assert (harms.verdict, harms.look_ahead, harms.cosine) == ("drop", pytest.approx(-0.5), 0.5)
    assert matrix([helps, harms]) == [
        ["steps on", "for a", "for b"],
        ["a", "", "keep (+0.42 ± 0.01)"],
        ["b", "drop (-0.50 ± 0.06)", ""],
    ]
    unsure = influences([comparison(k, 0.3 * (k - 1), -0.5) for k in range(3)])[0]
    few = influences(found[:2])[1]
    assert (unsure.verdict, few.verdict) == ("try alone", "try alone")
    assert matrix(influences([])) == []


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
    assert result.transfer[0].shown in page


def test_how_often_it_is_done_by_itself_follows_from_its_passes(folder: Path) -> None:
    training = Controller(config(folder), argv=[]).training()
    assert automatic_period(training) == math.ceil((3 * 2 + 4) / (0.02 * 3))
    assert TransferProbe(training, "auto").every == 167
    alone = Controller(tiny.config(folder, "cls", transfer_every_n_steps=5), argv=[])
    with pytest.raises(palm.ConfigError, match=r"transfer_every_n_steps.*one"):
        alone.train()
    with pytest.raises(palm.ConfigError, match=r"transfer_every_n_steps.*auto.*-1"):
        Controller(config(folder, transfer_every_n_steps=-3), argv=[])
