"""Freezing, and rates of parts of the model: from a configuration and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers import article, tiny
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import ConfigError
from palm.train.loop import Training


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return article.write_files(tmp_path)


def run(folder: Path, *tasks: str, **settings: Any) -> Training:
    settings = {"warmup_proportion": 0, "weight_decay": 0.1, **settings}
    return tiny.controller(folder, *tasks, **settings).training()


def rates(training: Training) -> dict[str, float]:
    by_parameter = {id(p): group["lr"] for group in training.optimizer.param_groups for p in group["params"]}
    named = training.model.named_parameters()
    return {name: by_parameter[id(p)] for name, p in named if id(p) in by_parameter}


def moved(training: Training, steps: int = 6) -> set[str]:
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    for _ in range(steps):
        training.next_step()
    return {name for name, p in training.model.named_parameters() if not torch.equal(p, before[name])}


def begins(names: set[str], *starts: str) -> set[str]:
    return {name for name in names if name.startswith(starts)}


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        ("embeddings", ["backbone.embeddings."]),
        (1, ["backbone.embeddings.", "backbone.layers.0."]),
        (2, ["backbone.embeddings.", "backbone.layers."]),
        ("backbone", ["backbone."]),
    ],
)
@pytest.mark.parametrize("optimizer", ["adam", "adamwdl", "lamb"])
def test_what_is_frozen_has_no_gradient_no_decay_and_no_state(
    folder: Path, freeze: str | int, frozen: list[str], optimizer: str
) -> None:
    training = run(folder, "cls", freeze=freeze, optimizer=optimizer, use_ema=True, ema_decay=0.5)
    named = dict(training.model.named_parameters())
    rest = begins(set(named), *frozen)
    assert rest
    went = moved(training)
    assert not went & rest
    # The bias of attention keys has a gradient of zero, and moves by rounding errors alone, if at all.
    assert {name for name in set(named) - rest - went if "key.bias" not in name} == set()
    assert all(named[name].grad is None and named[name] not in training.optimizer.state for name in rest)
    assert not rest & set(rates(training))
    assert training.ema is not None
    assert set(training.ema.average) == set(named) - rest


def test_a_frozen_run_predicts(folder: Path) -> None:
    settings = {"freeze": 1, "use_ema": True, "ema_decay": 0.9, "backbone_learning_rate": 1e-4}
    controller = tiny.controller(folder, "cls", **settings)
    controller.train()
    assert len(controller.pred("cls")) == 40


def test_parts_of_the_model_have_rates_of_their_own(folder: Path) -> None:
    given = {"learning_rate": 1e-3, "backbone_learning_rate": 1e-4, "cls.head_learning_rate": 5e-3}
    training = run(folder, "cls", "match", **given)
    found = rates(training)
    assert found["backbone.layers.1.ffn.inner.weight"] == 1e-4
    assert found["backbone.embeddings.word.weight"] == 1e-4
    assert (found["heads.@cls.out.weight"], found["heads.@match.out.weight"]) == (5e-3, 1e-3)
    assert found["heads.@cls.out.bias"] == 5e-3
    decays = {id(p): g["weight_decay"] for g in training.optimizer.param_groups for p in g["params"]}
    assert {decays[id(p)] for p in training.model.parameters() if p.ndim > 1} == {0.1}
    assert {decays[id(p)] for p in training.model.parameters() if p.ndim == 1} == {0.0}


def test_the_schedule_multiplies_every_rate(folder: Path) -> None:
    settings = {"lr_scheduler": "linear", "num_epochs": 1, "backbone_learning_rate": 1e-4}
    training = run(folder, "cls", **settings)
    for _ in range(6):
        step = training.next_step()
    found = rates(training)  # the sixth of ten steps: half is left
    assert found["backbone.pooler.weight"] == pytest.approx(0.5e-4)
    assert found["heads.@cls.out.weight"] == step.learning_rate == pytest.approx(0.5e-3)


def test_layers_and_rates_of_parts_go_together(folder: Path) -> None:
    training = run(folder, "cls", optimizer="adamwdl", layerwise_decay=0.5, backbone_learning_rate=1e-4)
    found = rates(training)
    assert found["backbone.embeddings.word.weight"] == pytest.approx(1e-4 / 4)
    assert found["backbone.layers.0.attention.query.weight"] == pytest.approx(1e-4 / 2)
    assert found["backbone.layers.1.attention.query.weight"] == pytest.approx(1e-4)
    assert found["heads.@cls.out.weight"] == pytest.approx(1e-3)


def test_a_lower_rate_of_the_head_is_that_of_a_run_with_two_optimizers(folder: Path) -> None:
    settings = {"weight_decay": 0, "grad_clip": None, "num_epochs": 1}
    training = run(folder, "cls", **settings, **{"cls.head_learning_rate": 1e-4})
    other = run(folder, "cls", **settings)
    head = set(other.tasks[0].head.parameters())
    body = [p for p in other.model.parameters() if p not in head]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": 1e-3}, {"params": list(head), "lr": 1e-4}], weight_decay=0.0, fused=True
    )
    same = {name: getattr(other, name) for name in ("parts", "tasks", "schedule", "device", "model")}
    by_hand = Training(other.config, **same, optimizer=optimizer)
    assert [step.loss.item() for step in training.steps()] == [step.loss.item() for step in by_hand.steps()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": 3}, "freeze: there are 2 layers, not 3"),
        ({"freeze": 0}, "freeze should be embeddings, backbone or a number of layers, not 0"),
        ({"freeze": "embedings"}, "freeze should be one of 'embeddings', 'backbone' or whole number"),
        ({"backbone_learning_rate": 0}, r"backbone_learning_rate: 0\.0"),
        ({"cls.head_learning_rate": -1}, "task 'cls': head_learning_rate: -1"),
    ],
)
def test_what_does_not_exist_is_an_error(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(folder, "cls", **settings)


def test_tasks_that_share_a_head_have_one_rate_for_it(folder: Path) -> None:
    config = tiny.config(folder, "cls")
    config["tasks"] = {name: dict(config["tasks"]["cls"]) for name in ("one", "two")}
    config |= {"task_instance": "one, two", "task_reuse_tag": "0, 0", "one.head_learning_rate": 1e-4}
    with pytest.raises(ConfigError, match=r"'one'.*'two'.*head_learning_rate"):
        Controller(config, argv=[]).training()


def test_a_checkpoint_of_other_settings_is_refused(folder: Path) -> None:
    def controller(**settings: Any) -> Controller:
        return tiny.controller(folder, "cls", num_epochs=1, **settings)

    controller(save_every_n_steps=5).train()
    for settings, line in [
        ({"freeze": 1}, "freeze: None in the checkpoint, 1 in this run"),
        ({"lr_scheduler": "cosine"}, "lr_scheduler: 'linear_warmup_decay' in the checkpoint, 'cosine'"),
        ({"precision": "bf16"}, "precision: 'fp32' in the checkpoint, 'bf16' in this run"),
        ({"mixing": "round_robin"}, "mixing: 'mix_ratio' in the checkpoint, 'round_robin' in this run"),
        ({"optimizer": "lamb"}, "optimizer: 'adam' in the checkpoint, 'lamb' in this run"),
    ]:
        with raises(palm.StorageError, line):
            controller(resume="auto", **settings).train()
