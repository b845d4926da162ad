"""Settings that PaddlePALM documents: defaults, files, first rows, a task's seed, empty and absent values."""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


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


def test_the_first_examples_and_their_rows_are_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        Controller(tiny.config(folder, "cls", num_epochs=1, print_first_n=2), argv=[]).training()
    assert "cls: example 0: " in caplog.text
    assert "cls: row 1: {'token_ids': [2, " in caplog.text
    assert "cls: example 2: " not in caplog.text


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


def test_checkpoints_are_written_where_asked_and_models_of_targets_alone(folder: Path) -> None:
    config = tiny.config(folder, "cls", "mlm", num_epochs=1, target_tag=[1, 0])
    out = folder / "out"
    Controller(config, argv=[]).train()
    assert list(out.glob("step_*")) == []
    assert (out / "cls" / "infer_model").is_dir()
    assert not (out / "mlm").exists()
    again = Controller({**config, "save_every_n_steps": 5, "overwrite": True}, argv=[])
    again.train()
    steps = sorted(int(path.name.removeprefix("step_")) for path in out.glob("step_*"))
    assert steps[:2] == [5, 10]


def test_use_gpu_runs_on_what_is_there(folder: Path) -> None:
    training = Controller(tiny.config(folder, "cls", num_epochs=1, use_gpu=True), argv=[]).training()
    assert training.device.type in ("cpu", "cuda")
    assert Controller(
        tiny.config(folder, "cls", num_epochs=1, use_gpu=False), argv=[]
    ).training().device.type == ("cpu")


def test_the_rate_falls_over_the_steps_of_all_tasks(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", num_epochs=2, mix_ratio=[1.0, 0.5], warmup_proportion=0.1)
    training = Controller(config, argv=[]).training()
    assert [task.expected_steps for task in training.tasks] == [20, 10]
    schedule = training.schedule
    assert isinstance(schedule, palm.lr_sched.TriangularScheduler)
    assert (schedule.warmup_steps, schedule.num_train_steps) == (3, 30)


def test_without_num_epochs_a_trainer_trains_one_and_load_data_may_follow_register_with(folder: Path) -> None:
    backbone = palm.backbone.BERT.from_config(tiny.BACKBONE)
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 24)
    reader.register_with(backbone)
    reader.load_data(folder / "cls.tsv", 4)
    trainer = palm.Trainer("cls")
    loss_var = trainer.build_forward(backbone, palm.head.Classify(4, 32))
    trainer.build_backward(palm.optimizer.Adam(loss_var, 1e-3))
    trainer.fit_reader(reader)
    trainer.train(print_steps=0)
    assert (trainer.cur_train_step, trainer.steps_pur_epoch) == (10, 10)


def test_loading_weights_is_logged_as_in_2_x(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Controller(tiny.config(folder, "cls", num_epochs=1), argv=[]).train()
    model = folder / "out" / "cls" / "infer_model"
    trainer = palm.Trainer("cls")
    trainer.build_forward(palm.backbone.BERT.from_config(tiny.BACKBONE), palm.head.Classify(4, 32))
    with caplog.at_level(logging.INFO, "palm"):
        trainer.load_pretrain(model)
    assert f"Loading pretraining parameters from {model}..." in caplog.messages


def with_task(folder: Path, task: dict[str, Any], **settings: Any) -> dict[str, Any]:
    config = tiny.config(folder, "cls", "mlm", num_epochs=1, **settings)
    config["tasks"]["mlm"] = {**config["tasks"]["mlm"], **task}
    return config


def batches(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    training = Controller(config, argv=[]).training()
    return {task.name: task.batches(0)[0]["token_ids"] for task in training.tasks}


def test_a_task_has_a_seed_of_its_own(folder: Path) -> None:
    plain, seeded = (batches(with_task(folder, task)) for task in ({}, {"seed": 5}))
    assert torch.equal(plain["cls"], seeded["cls"])
    assert not torch.equal(plain["mlm"], seeded["mlm"])
    whole = batches(with_task(folder, {}, random_seed=5))
    assert torch.equal(whole["mlm"], seeded["mlm"])
    assert not torch.equal(whole["cls"], seeded["cls"])


def test_a_seed_in_the_global_file_is_that_of_the_run(folder: Path) -> None:
    by_either = [batches(with_task(folder, {}, **{name: 5})) for name in ("seed", "random_seed")]
    assert all(torch.equal(by_either[0][name], by_either[1][name]) for name in ("cls", "mlm"))


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


def test_an_empty_pred_output_path_is_the_tasks_folder(folder: Path) -> None:
    settings = tiny.config(folder, "cls", num_epochs=1)
    settings["tasks"]["cls"] |= {"pred_output_path": "", "pred_file": str(folder / "cls.tsv")}
    controller = Controller(settings, argv=[])
    controller.train()
    controller.pred("cls")
    assert (folder / "out" / "cls" / "predictions.json").is_file()


def test_max_ans_len_may_be_none_as_published(folder: Path) -> None:
    published = palm.head.MRC(8, 32, None, False, False, False, None, 0.0, 20, "train")
    assert published.max_answer_len == palm.head.MRC(8, 32).max_answer_len == 30
    settings = tiny.config(folder, "mrc", num_epochs=1)
    settings["tasks"]["mrc"] |= {"max_answer_len": None}
    assert Controller(settings, argv=[]).training().tasks[0].head.max_answer_len == 30
