"""Layers of a task's own above a shared lower encoder: what is shared runs once, and models are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palm
from helpers import tiny
from palm.controller.controller import Controller
from palm.train.callbacks import Evaluated
from palm.train.checkpoint import load_checkpoint, save_checkpoint, trained_weights
from palm.train.loop import Training
from palm.train.train_step import sum_of_losses

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_prob": 0.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def config(folder: Path, **settings: Any) -> dict[str, Any]:
    """Three layers; `cls` has two of its own, `match` one, `mlm` none."""
    own = {"cls.private_layers": 2, "match.private_layers": 1, "num_hidden_layers": 3}
    return tiny.config(folder, "cls", "match", "mlm", **{**own, **settings})


def run(folder: Path, **settings: Any) -> Training:
    return Controller(config(folder, **settings), argv=[]).training()


def gradients(training: Training, *names: str) -> tuple[dict[str, Tensor], Tensor]:
    drawn = [(task, task.batches(0)) for task in training.tasks if task.name in names]
    training.model.train()
    training.optimizer.zero_grad()
    losses = sum_of_losses(training.replica, training.task_batches(drawn))
    return {n: p.grad for n, p in training.model.named_parameters() if p.grad is not None}, losses


def test_own_layers_begin_as_copies_of_the_shared_ones(folder: Path) -> None:
    own = run(folder, **STILL)
    plain = run(folder, **STILL, **{"cls.private_layers": 0, "match.private_layers": 0})
    for names in (("cls",), ("match",), ("cls", "match", "mlm")):
        torch.testing.assert_close(gradients(own, *names)[1], gradients(plain, *names)[1], atol=2e-6, rtol=0)
    names = [name for name, _ in own.model.named_parameters() if name.startswith("private.")]
    assert {name.split(".")[1] for name in names} == {"@cls", "@match"}
    assert "private.@cls.layers.1.ffn.inner.weight" in names
    assert "private.@match.pooler.weight" in names


def test_the_gradient_of_what_is_shared_is_the_sum(folder: Path) -> None:
    training = run(folder, **STILL)
    together, losses = gradients(training, "cls", "match", "mlm")
    alone = [gradients(training, name) for name in ("cls", "match", "mlm")]
    torch.testing.assert_close(losses, torch.cat([loss for _, loss in alone]), atol=2e-6, rtol=0)
    for name, value in together.items():
        parts = [own[name] for own, _ in alone if name in own]
        torch.testing.assert_close(value, sum(parts[1:], parts[0]), atol=2e-6, rtol=1e-4, msg=name)


def test_a_task_moves_its_own_layers_and_those_that_it_shares(folder: Path) -> None:
    training = run(folder, warmup_proportion=0.0)
    (cls, *_), before = training.tasks, {n: p.clone() for n, p in training.model.named_parameters()}
    training.step_on([(cls, cls.batches(0))])
    moved = {n for n, p in training.model.named_parameters() if not torch.equal(p, before[n])}
    assert {".".join(name.split(".")[:3]) for name in moved} == {
        *("backbone.embeddings.word", "backbone.embeddings.position", "backbone.embeddings.segment"),
        *("backbone.embeddings.norm", "backbone.layers.0", "heads.@cls.out"),
        *("private.@cls.layers", "private.@cls.pooler"),
    }


@pytest.mark.parametrize("settings", [{}, {"tasks_per_step": "all"}])
def test_a_resumed_run_repeats_an_uninterrupted_one(folder: Path, settings: dict[str, Any]) -> None:
    def losses(training: Training, count: int) -> list[list[float]]:
        return [[part.loss.item() for part in training.next_step().parts] for _ in range(count)]

    expected, first, second = (
        losses(run(folder, **settings), 12),
        run(folder, **settings),
        run(folder, **settings),
    )
    before = losses(first, 7)
    save_checkpoint(first, folder / "step_7")
    load_checkpoint(second, folder / "step_7")
    assert before + losses(second, 5) == expected
    with pytest.raises(palm.StorageError, match="private_layers"):
        trained_weights(folder / "step_7")


def test_a_saved_model_is_whole_and_predicts_what_the_run_would(folder: Path) -> None:
    given = config(folder, num_epochs=4, tasks_per_step="all")
    given["tasks"]["cls"]["dev_file"] = given["tasks"]["cls"]["train_file"]
    controller = Controller(given, argv=[])
    controller.train()
    models = {
        task: palm.load_model(folder / "out" / task / "infer_model") for task in ("cls", "match", "mlm")
    }
    layers = {name: model.backbone.state_dict() for name, model in models.items()}
    for name in layers["cls"]:
        is_shared = "embeddings" in name or "layers.0." in name
        assert torch.equal(layers["cls"][name], layers["mlm"][name]) == is_shared, name
    assert torch.equal(
        layers["match"]["layers.1.ffn.inner.weight"], layers["mlm"]["layers.1.ffn.inner.weight"]
    )
    scores = controller.evaluate("cls", folder / "out" / "cls" / "infer_model")
    evaluations = [line for line in controller.train().history if isinstance(line, Evaluated)]
    assert evaluations[-1].scores["cls"] == pytest.approx(scores)


def test_own_layers_lie_where_the_shared_ones_of_their_height_lie(folder: Path) -> None:
    layers = run(folder).model.parameter_layers()
    tops = [{name.split(".layers")[0] for name in names} for names in layers]
    assert tops[1:] == [
        {"backbone"},
        {"backbone", "private.@cls"},
        {"backbone", "private.@cls", "private.@match"},
    ]


def test_more_layers_than_there_are_is_a_mistake(folder: Path) -> None:
    with pytest.raises(palm.ConfigError, match=r"private_layers.* 2.* 3"):
        Controller(config(folder, **{"cls.private_layers": 3}), argv=[])
