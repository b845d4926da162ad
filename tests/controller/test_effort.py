"""`effort` chooses rate, batches and length where the user set nothing, and tells why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from helpers import tiny
from helpers.messages import raises
from palm.config import read_config
from palm.controller.controller import Controller
from palm.controller.effort import RunFacts, choose_by_effort, choose_settings, facts_of
from palm.controller.resolve import resolve
from palm.controller.rows import choose_rows
from palm.core.errors import ConfigError
from palm.core.group import count_devices, is_launched
from palm.train.build import schedule_for

OWN = ("learning_rate", "num_epochs", "batch_size")


def given(folder: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    """A tiny configuration that says neither rate nor length nor batches."""
    config = tiny.config(tiny.write_files(folder), *tasks, effort="normal")
    for part in (config, *config["tasks"].values()):
        for name in OWN:
            part.pop(name, None)
    return {**config, **settings}


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"),
    [(8, 8, 100), (100, 16, 43), (400, 16, 12), (4478, 16, 3), (7000, 32, 3), (None, 32, 3)],
)
def test_few_rows_have_as_many_updates_and_many_rows_as_many_passes(
    rows: int | None, batch: int, epochs: int
) -> None:
    found = choose_settings("normal", RunFacts(rows, 384))
    assert (found["batch_size"][0], found["num_epochs"][0]) == (batch, epochs)


@pytest.mark.parametrize(
    ("width", "is_pretrained", "rate"),
    [
        (64, True, 2.9e-3),
        (128, True, 1e-3),
        (384, True, 2e-4),
        (768, True, 5e-5),
        (None, True, 5e-5),
        (1024, True, 2e-5),
        (64, False, 3e-3),
    ],
)
def test_wide_encoders_have_lower_rates(width: int | None, is_pretrained: bool, rate: float) -> None:
    assert choose_settings("best", RunFacts(100, width, is_pretrained))["learning_rate"][0] == rate


@pytest.mark.parametrize(
    ("facts", "freeze"),
    [
        (RunFacts(300, 384, can_rest=True), "embeddings"),
        (RunFacts(301, 384, can_rest=True), None),
        (RunFacts(50, 64, can_rest=True), None),  # a new project's encoder has all its words in its table
        (RunFacts(50, 384, is_pretrained=False, can_rest=True), None),
        (RunFacts(50, 384), None),  # a user's encoder may not define its layers
    ],
)
def test_embeddings_of_pretrained_encoders_rest_with_few_rows(facts: RunFacts, freeze: str | None) -> None:
    assert choose_settings("normal", facts).get("freeze", (None,))[0] == freeze


def test_a_run_gets_what_is_chosen_with_the_reason_in_its_record(tmp_path: Path) -> None:
    config = given(tmp_path, "cls", "match")
    Controller({**config, "max_steps": 2}, argv=[]).train()
    text = (tmp_path / "out" / "resolved_config.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    assert found["global"]["learning_rate"] == 0.003
    assert found["tasks"]["cls"]["batch_size"] == found["tasks"]["match"]["batch_size"] == 16
    assert "num_epochs" not in found["global"]
    (line,) = (line for line in text.splitlines() if line.strip().startswith("learning_rate"))
    assert [part for part in ("effort normal", "random weights", "32 wide") if part not in line] == []
    assert Controller(found, argv=[]).run.to_dict() == found


def test_every_setting_that_is_there_counts(tmp_path: Path) -> None:
    config = given(tmp_path, "cls", "match", learning_rate=0.5, max_steps=7, eval_every_n_steps=3)
    config["tasks"]["match"]["batch_size"] = 5
    config["tasks"]["cls"]["dev_file"] = config["tasks"]["cls"]["train_file"]
    found = Controller(config, argv=["--warmup_proportion", "0.3"]).run.to_dict()
    assert [found["global"][name] for name in ("learning_rate", "warmup_proportion")] == [0.5, 0.3]
    assert {"num_epochs", "eval_every_epoch"}.isdisjoint(found["global"])
    assert [found["tasks"][task]["batch_size"] for task in ("cls", "match")] == [16, 5]


def test_heads_of_several_tasks_have_a_higher_rate_unless_a_rate_is_given(tmp_path: Path) -> None:
    config = given(tmp_path, "cls", "match")
    config["tasks"]["match"]["head_learning_rate"] = 0.5
    found = Controller(config, argv=[]).run.to_dict()["tasks"]
    assert [found[task]["head_learning_rate"] for task in ("cls", "match")] == [0.03, 0.5]
    for own in ({"learning_rate": 0.1}, {"head_learning_rate": 0.2}, {"backbone_learning_rate": 0.1}):
        run = Controller({**config, **own}, argv=[]).run
        assert run.tasks[0].settings.head_learning_rate == own.get("head_learning_rate")
    alone = Controller(given(tmp_path, "cls"), argv=[]).run
    assert alone.tasks[0].settings.head_learning_rate is None


@pytest.mark.parametrize(
    ("facts", "rate"),
    [
        (RunFacts(300, 64), 8.7e-3),
        (RunFacts(300, 65), None),  # not measured, up to 384, where it did not help
        (RunFacts(300, 64, is_pretrained=False), None),
        (RunFacts(300, 384, tasks=2), 2e-3),
    ],
)
def test_the_head_of_one_task_has_a_higher_rate_on_the_encoder_of_a_new_project(
    facts: RunFacts, rate: float | None
) -> None:
    assert choose_settings("normal", facts).get("head_learning_rate", (None,))[0] == rate


def test_the_rows_are_those_that_are_chosen_to_train_on(tmp_path: Path) -> None:
    config = given(tmp_path, "cls", "match", target_tag=[0, 1])
    config["tasks"]["match"]["sample"] = 10
    config["tasks"]["match"]["dev_file"] = config["tasks"]["match"]["train_file"]
    read = read_config(config, argv=[])
    choose_by_effort(read)
    assert facts_of(choose_rows(resolve(read), for_train=True)) == RunFacts(
        10, 32, is_pretrained=False, can_rest=True, is_evaluated=True, steps_of_all=2.0, tasks=2
    )
    run = resolve(read).settings
    # One step of the main task per epoch, and one of the other task.
    assert (run.num_epochs, run.eval_every_epoch, run.eval_every_n_steps) == (100, False, 20)


def test_a_run_without_a_rate_is_one_of_normal_effort_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = given(tmp_path, "cls")
    del config["effort"]
    with caplog.at_level("INFO", "palm"):
        run = Controller(config, argv=[]).run
    assert "learning_rate 0.003 (effort normal: " in caplog.text
    assert (run.settings.num_epochs, run.settings.warmup_proportion) == (100, 0.1)
    config["learning_rate"] = 0.1
    with pytest.raises(ConfigError, match="num_epochs is missing"):
        Controller(config, argv=[])


def test_a_schedule_without_a_warm_up_gets_none(tmp_path: Path) -> None:
    config = given(tmp_path, "cls", lr_scheduler="helpers.components.Halving")
    del config["warmup_proportion"]
    assert Controller(config, argv=[]).run.settings.warmup_proportion == 0.0
    rate = schedule_for(Controller({**config, "lr_scheduler": "linear_warmup_decay"}, argv=[]).run, 100)
    assert (rate(10), rate(100)) == (0.9, 0.0)  # falls to zero, as the rate of PALM does after a warm-up


def test_a_setting_that_overrides_another_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = given(tmp_path, "cls", max_seq_len=32)
    with caplog.at_level("INFO", "palm"):
        Controller(config, argv=["--max_seq_len", "16"])
    told = [record.getMessage() for record in caplog.records if " overrides " in record.getMessage()]
    assert told == ["--max_seq_len = 16 overrides 32 (config)"]


def test_a_step_of_no_tasks_is_refused_by_name(tmp_path: Path) -> None:
    with raises(ConfigError, "tasks_per_step should be an integer from 1 to 2"):
        Controller(given(tmp_path, "cls", "match", tasks_per_step=0), argv=[])


def test_a_world_size_without_a_rank_is_that_of_no_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.controller(tiny.write_files(tmp_path), "cls", device="cpu").run
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert facts_of(run).devices == 1


def test_a_world_size_in_words_is_refused_beside_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    monkeypatch.setenv("RANK", "0")
    with raises(ConfigError, "WORLD_SIZE", "'two'"):
        is_launched()


def test_more_processes_than_a_cpu_has_cores_are_refused() -> None:
    many = max(8, os.cpu_count() or 1)
    assert count_devices(torch.device("cpu"), many) == many
    with raises(ConfigError, f"num_devices is {many + 1}", f"{os.cpu_count()} cores"):
        count_devices(torch.device("cpu"), many + 1)


def test_rows_that_cannot_be_counted_are_not_called_many() -> None:
    assert choose_settings("normal", RunFacts(rows=None))["batch_size"] == (32, "an unknown number of rows")
    assert choose_settings("normal", RunFacts(rows=20_000))["batch_size"] == (32, "20000 rows or more")
