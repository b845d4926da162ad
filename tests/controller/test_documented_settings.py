"""Settings that PaddlePALM documents: defaults, files, first rows, a task's seed, empty and absent values."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny
from palm import optimizer, paradigm
from palm.config import settings_of
from palm.config.settings import RunSettings
from palm.controller.controller import Controller
from palm.reader import READERS
from palm.train.task import Task

DEFAULTS: dict[Any, dict[str, Any]] = {
    RunSettings: {
        "mix_ratio": None,
        "target_tag": None,
        "task_reuse_tag": None,
        "backbone_config_path": None,
        "print_every_n_steps": 5,
        "use_gpu": True,
        "warmup_proportion": 0.0,
        "use_ema": False,
        "ema_decay": 0.0,
        "random_seed": 1,
    },
    Task: {"shuffle": True, "seed": None, "pred_batch_size": None, "print_first_n": 0},
    paradigm.MRC: {"n_best_size": 20, "null_score_diff_threshold": 0.0, "with_negative": False},
    paradigm.Match: {"learning_strategy": "pointwise", "margin": 0.5, "initializer_range": 0.02},
    optimizer.AdamWDL: {
        **{"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01},
        **{"apply_decay_param_fun": None, "grad_clip": None, "layerwise_decay": 1.0},
    },
    optimizer.Lamb: {"weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6},
}


@pytest.mark.parametrize("consumer", DEFAULTS, ids=lambda consumer: consumer.__name__)
def test_defaults_are_the_documents(consumer: Any) -> None:
    settings = settings_of(consumer)
    assert {name: settings[name].default for name in DEFAULTS[consumer]} == DEFAULTS[consumer]


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_reader_has_the_documents_common_settings_and_defaults(name: str) -> None:
    settings = settings_of(READERS[name])
    assert {"vocab_path", "max_seq_len"} <= settings.keys()
    assert settings["do_lower_case"].default is False
    assert settings["for_cn"].default is False if "for_cn" in settings else name in ("mrc", "seq_label")
    first = list(inspect.signature(READERS[name]).parameters)[:2]
    assert first == ["vocab_path", "max_seq_len"]


def test_prediction_has_the_batch_size_of_training_or_its_own_and_the_order_of_the_file(folder: Path) -> None:
    config = tiny.config(folder, "cls", num_epochs=1)
    assert Controller(config, argv=[]).training().tasks[0].task.rows_per_prediction == config["batch_size"]
    Controller({**config, "pred_batch_size": 7}, argv=[]).train()
    seven, three = (
        Controller({**config, "pred_batch_size": size}, for_train=False, argv=[]).pred("cls")
        for size in (7, 3)
    )
    assert [record["index"] for record in seven] == list(range(40))
    assert [record["label"] for record in seven] == [record["label"] for record in three]


def with_task(folder: Path, task: dict[str, Any], **settings: Any) -> dict[str, Any]:
    config = tiny.config(folder, "cls", "mlm", num_epochs=1, **settings)
    config["tasks"]["mlm"] = {**config["tasks"]["mlm"], **task}
    return config


def test_use_ema_alone_has_the_documents_decay_of_0_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Controller(with_task(folder, {}, use_ema=True), argv=[]).training()
    assert training.ema is not None
    training.next_step()
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    with training.averaged():
        assert all(torch.equal(value, before[name]) for name, value in training.model.state_dict().items())
    assert re.search(r"use_ema .*ema_decay", caplog.text)
