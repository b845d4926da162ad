"""Settings that PaddlePALM's document promises: a task's seed, `use_ema` alone, empty and absent values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from palm.controller import Controller


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


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
    assert "use_ema has no effect: ema_decay is 0, so averages are the weights" in caplog.text


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
