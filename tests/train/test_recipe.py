"""One recipe behind both doors: a checkpoint of either continues in the other, to the bit."""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import palm.compat as palm
from helpers import tiny
from helpers.equal import differing, state_of
from palm.controller.controller import Controller
from palm.core.io import new_directory
from palm.core.saved import rebuild
from palm.optimizer.lr_sched import schedule_of_run
from palm.reader import READERS
from palm.train.checkpoint import compared, differences, load_checkpoint, save_checkpoint
from palm.train.loop import Training

STEPS = 40  # of both tasks together: 40 rows in batches of 4, 2 epochs


def by_controller(folder: Path, **settings: Any) -> Controller:
    given = {"grad_clip": None, "use_ema": True, "ema_decay": 0.9, "random_seed": 3, **settings}
    return tiny.controller(folder, "cls", "match", **given)


def by_trainer(folder: Path, schedule: Any = "", weight_decay: float = 0.01) -> palm.MultiHeadTrainer:
    """The same run as `by_controller`, with dropout in encoder and heads, under the names of 2.x."""
    cls = palm.reader.ClassifyReader(str(folder / "vocab.txt"), 24, seed=3)
    match = palm.reader.MatchReader(str(folder / "vocab.txt"), 24)
    encoder = palm.backbone.BERT.from_config(tiny.BACKBONE)
    trainers = [palm.Trainer("cls", mix_ratio=1.0), palm.Trainer("match", mix_ratio=1.0)]
    heads = [palm.head.Classify(4, 32, 0.1), palm.head.Match(2, 32, 0.1)]
    for reader, file, trainer, head in zip((cls, match), ("cls", "match"), trainers, heads, strict=True):
        reader.load_data(folder / f"{file}.tsv", batch_size=4, num_epochs=None)
        reader.register_with(encoder)
        trainer.build_forward(encoder, head)
    together = palm.MultiHeadTrainer(trainers, precision="fp32")
    loss = together.build_forward()
    schedule = palm.lr_sched.TriangularSchedualer(int(0.1 * STEPS), STEPS) if schedule == "" else schedule
    adam = palm.optimizer.Adam(loss, 1e-3, schedule)
    together.build_backward(adam, weight_decay=weight_decay, use_ema=True, ema_decay=0.9)
    together.fit_readers_with_mixratio([cls, match], "cls", num_epochs=2)
    return together


def losses(training: Training, count: int | None = None) -> list[tuple[str, float]]:
    return [(step.task.name, step.loss.item()) for step in islice(training.steps(), count)]


def run_of(trainer: palm.MultiHeadTrainer) -> Training:
    return trainer._training("train")


def test_both_doors_have_one_identity_in_registry_names(folder: Path) -> None:
    ours = compared(by_controller(folder).training())
    theirs = compared(run_of(by_trainer(folder)))
    assert ours == theirs
    assert json.loads(json.dumps(ours)) == ours
    names = {key: ours[key]["name"] for key in ("backbone", "optimizer", "lr_scheduler", "mixing")}
    encoder = {"backbone": "bert", "mixing": "mix_ratio"}
    assert names == encoder | {"optimizer": "adam", "lr_scheduler": "linear_warmup_decay"}
    assert ours["lr_scheduler"]["settings"] == {"warmup_steps": 4, "num_train_steps": 40}
    assert ours["tasks"]["match"]["paradigm"]["name"] == "match"


def test_a_checkpoint_of_a_controller_continues_in_a_trainer(folder: Path) -> None:
    uninterrupted = by_controller(folder).training()
    expected = losses(uninterrupted)
    assert {name for name, _ in expected[17:]} == {"cls", "match"}
    by_controller(folder, save_every_n_steps=17).train()

    trainer = by_trainer(folder)
    trainer.load_ckpt(folder / "out" / "step_17")
    assert trainer.cur_train_step == 17
    rest = [trainer.train_one_step(trainer.get_one_batch()) for _ in expected[17:]]
    assert [(list(trainer.trainers)[task], *_numbers(loss)) for loss, task in rest] == expected[17:]
    assert differing(state_of(run_of(trainer)), state_of(uninterrupted)) == []


def test_a_checkpoint_of_a_trainer_continues_in_a_controller(folder: Path) -> None:
    uninterrupted = by_trainer(folder)
    expected = losses(run_of(uninterrupted))
    first = by_trainer(folder)
    before = losses(run_of(first), 23)
    first.save(folder / "ckpt")

    training = by_controller(folder).training()
    load_checkpoint(training, folder / "ckpt")
    assert before + losses(training) == expected
    assert differing(state_of(training), state_of(run_of(uninterrupted))) == []

    last = len(expected)
    by_controller(folder, resume=str(folder / "ckpt"), save_every_n_steps=last).train()
    saved = load_file(folder / "out" / f"step_{last}" / "raw.safetensors")
    assert differing(saved, run_of(uninterrupted).model) == []


def _numbers(outputs: dict[str, torch.Tensor]) -> list[float]:
    return [value.item() for value in outputs.values()]


# What belongs to a run


def test_without_a_warm_up_palms_schedule_is_the_constant_rate_that_2_x_has_by_default(folder: Path) -> None:
    ours = compared(by_controller(folder, warmup_proportion=0.0).training())
    theirs = compared(run_of(by_trainer(folder, schedule=None)))
    assert ours["lr_scheduler"] == {"name": "constant", "settings": {"warmup_steps": 0}}
    assert theirs == ours
    constant = schedule_of_run("linear_warmup_decay", 7, 0.0)
    assert (
        [constant(step) for step in range(9)] == [constant.simplest()(step) for step in range(9)] == [1.0] * 9
    )


def test_what_differs_has_the_names_of_the_command_line(folder: Path) -> None:
    saved = compared(by_controller(folder).training())
    settings = {"num_epochs": 3, "optimizer": "lamb", "match.dropout_prob": 0.2, "freeze": 1}
    now = compared(by_controller(folder, hidden_size=32, hidden_dropout_prob=0.0, **settings).training())
    values = [re.match(r"(\S+): (\S+) in the checkpoint, (\S+) in", line) for line in differences(saved, now)]
    assert [found and found.groups() for found in values] == [
        ("hidden_dropout_prob", "0.1", "0.0"),
        ("freeze", "None", "1"),
        ("num_train_steps", "40", "60"),
        ("warmup_steps", "4", "6"),
        ("optimizer", "'adam'", "'lamb'"),
        ("match.dropout_prob", "0.1", "0.2"),
    ]
    turned = by_controller(folder, task_instance="match, cls").training()
    assert differences(saved, compared(turned)) == [
        "task_instance: ['cls', 'match'] in the checkpoint, ['match', 'cls'] in this run"
    ]


def test_a_class_outside_the_registries_has_its_dotted_path(folder: Path) -> None:
    trainer = by_trainer(folder, schedule=halved)
    assert compared(run_of(trainer))["lr_scheduler"] == f"{__name__}.halved"


def halved(step: int) -> float:
    return 0.5**step


# How long a run is


def test_a_run_with_a_constant_rate_may_be_continued_for_longer(folder: Path) -> None:
    constant = {"warmup_proportion": 0.0}
    longer = by_controller(folder, num_epochs=3, **constant).training()
    expected = losses(longer)
    first = by_controller(folder, num_epochs=2, **constant).training()
    before = losses(first, 30)
    save_checkpoint(first, folder / "ckpt")
    second = by_controller(folder, num_epochs=3, **constant).training()
    load_checkpoint(second, folder / "ckpt")
    assert before + losses(second) == expected
    assert [task.expected_steps for task in second.tasks] == [30, 30]


def test_an_end_that_has_passed_is_refused(folder: Path) -> None:
    constant = {"warmup_proportion": 0.0}
    first = by_controller(folder, num_epochs=2, **constant).training()
    losses(first, 30)
    save_checkpoint(first, folder / "ckpt")
    had = {task.name: task.step for task in first.tasks}
    second = by_controller(folder, num_epochs=1, **constant).training()
    with pytest.raises(palm.StorageError) as caught:
        load_checkpoint(second, folder / "ckpt")
    for name, steps in had.items():
        assert re.search(rf"{name} .* {steps} .* 10 \(", str(caught.value))
    assert second.step == 0


def test_a_checkpoint_of_version_1_is_refused(folder: Path) -> None:
    training = by_controller(folder).training()
    save_checkpoint(training, folder / "new")
    state = json.loads((folder / "new" / "state.json").read_text(encoding="utf-8"))
    with new_directory(folder / "old") as part:
        for file in (folder / "new").glob("*.safetensors"):
            shutil.copy(file, part)
        (part / "state.json").write_text(json.dumps({**state, "version": 1}), encoding="utf-8")
    with pytest.raises(palm.StorageError) as caught:
        load_checkpoint(training, folder / "old")
    for part in (str(folder / "old"), "version 1", "version 3", "load_pretrain"):
        assert part in str(caught.value)


def test_tasks_with_one_vocabulary_have_it_once_in_a_checkpoint(folder: Path) -> None:
    run = tiny.controller(folder, "cls", "match", "mlm").training()
    save_checkpoint(run, folder / "step_0")
    copies = list((folder / "step_0").rglob("*.txt"))
    assert copies == [folder / "step_0/vocab.txt"]
    tasks = json.loads((folder / "step_0/config.json").read_text(encoding="utf-8"))["tasks"]
    for task in ("cls", "match", "mlm"):
        reader = rebuild(READERS, tasks[task]["reader"], folder / "step_0")
        assert reader.settings["vocab_path"] == copies[0]
        assert reader.vocab_size == 35
