"""Losses read a step late, batches made a step ahead, as on a GPU: the same steps and the same refusals."""

from __future__ import annotations

import json
import math
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import tiny
from palm.controller.controller import Controller
from palm.core.errors import TrainingError
from palm.train import loop
from palm.train.checkpoint import load_checkpoint, optimizer_tensors, save_checkpoint
from palm.train.loop import Training
from palm.train.nan_guard import Attempt, NanGuard, NotFinite

KINDS = [["cls"], ["cls", "mlm", "mrc"]]
RULES: list[dict[str, Any]] = [
    {},
    {"optimizer": "lamb"},
    {"optimizer": "adamwdl"},
    {"epsilon_hat": True, "learning_rate": 1e-4},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "can_read_late", lambda *_: True)
    patch.setattr(loop, "prefetches", lambda *_: True)


def run(folder: Path, tasks: list[str], **settings: Any) -> Training:
    return Controller(tiny.config(folder, *tasks, num_epochs=1, **settings), argv=[]).training()


def everything(training: Training) -> dict[str, Tensor]:
    """Weights, moments and counters."""
    moments = optimizer_tensors(training.optimizer, dict(training.model.named_parameters()))
    return {**training.model.state_dict(), **moments}


def assert_equal(one: Training, other: Training) -> None:
    ours, theirs = everything(one), everything(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize("settings", [*RULES, {"tasks_per_step": 2}, {"mixing": "round_robin"}])
def test_the_steps_are_those_of_reading_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    at_once = run(folder, KINDS[1], **settings)
    expected = [(step.task.name, step.loss.item(), step.grad_norm.item()) for step in at_once.steps()]
    as_on_a_gpu(monkeypatch)
    late = run(folder, KINDS[1], **settings)

    assert [(step.task.name, step.loss.item(), step.grad_norm.item()) for step in late.steps()] == expected
    assert_equal(late, at_once)


def test_a_run_continues_from_its_checkpoint_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run(folder, KINDS[1])
    expected = [step.loss.item() for step in whole.steps()]
    as_on_a_gpu(monkeypatch)
    first = run(folder, KINDS[1])
    before = [
        step.loss.item() for step in islice(first.steps(), 7)
    ]  # the eighth batch is made, and thrown away
    save_checkpoint(first, tmp_path / "step_7")
    second = run(folder, KINDS[1])
    load_checkpoint(second, tmp_path / "step_7")

    assert before + [step.loss.item() for step in second.steps()] == expected
    assert_equal(second, whole)


def poisoned(training: Training, at: int) -> tuple[str, int]:
    """Take steps, one of them with a weight that is not a number; the message, and how many were taken."""
    weight = next(iter(training.model.head("cls").parameters()))
    for number in range(1, at + 3):
        kept = weight.detach().clone()
        if number == at:
            weight.data.fill_(math.nan)
        try:
            training.next_step()
        except TrainingError as error:
            return str(error), number
        finally:
            weight.data.copy_(kept) if number == at else None
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("rule", RULES)
def test_a_bad_step_is_reported_one_step_later_and_nothing_has_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    at_once = run(folder, ["cls"], **rule)
    expected, taken = poisoned(at_once, 4)
    as_on_a_gpu(monkeypatch)
    late = run(folder, ["cls"], **rule)
    message, taken_late = poisoned(late, 4)

    assert message == expected
    assert re.match(r"task 'cls': .*nan .*step 4 .*global step 4", message)
    assert (taken, taken_late) == (4, 5)
    assert_equal(late, at_once)
    assert late.next_step().loss.item() == at_once.next_step().loss.item()
    assert_equal(late, at_once)


@pytest.mark.parametrize("look", ["state_dict", "averaged", "settle"])
def test_who_saves_or_evaluates_hears_of_a_bad_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    as_on_a_gpu(monkeypatch)
    training = run(folder, ["cls"])
    next(iter(training.model.head("cls").parameters())).data.fill_(math.nan)
    training.next_step()

    with pytest.raises(TrainingError, match=r"loss is nan.*step 1 .*step 1\)"):
        getattr(training, look)()
    assert (training.step, training.rows, training.tasks[0].step) == (0, 0, 0)


def test_the_history_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        save_path = folder / name
        settings = {"save_path": str(save_path), "print_every_n_steps": 2, "save_every_n_steps": 4}
        config = tiny.config(folder, *KINDS[1], num_epochs=1, **settings)
        Controller(config, argv=[]).train()
        found = map(json.loads, (save_path / "history.jsonl").read_text(encoding="utf-8").splitlines())
        clocks = {"seconds", "time", "path", "memory_bytes"}
        return [{key: value for key, value in line.items() if key not in clocks} for line in found]

    at_once = lines("at_once")
    as_on_a_gpu(monkeypatch)

    assert lines("late") == at_once
    assert len(at_once) > 12


def test_after_a_bad_value_no_step_is_made_until_it_is_read() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    guard, moved = NanGuard(optimizer, late=True), []
    for number, loss in enumerate([1.0, math.inf, 1.0]):
        weight.grad = torch.ones(3)
        attempt = Attempt(["a"], number, 0, 0, {"a": number})
        if number < 2:
            assert guard.update(attempt, {"loss": torch.tensor(loss)}) is None
            moved.append(weight[0].item())
    with pytest.raises(NotFinite, match="the loss is inf") as caught:
        guard.update(attempt, {"loss": torch.tensor(1.0)})

    assert caught.value.attempt.step == 1
    assert moved == [weight[0].item()] * 2
    assert optimizer.state[weight]["step"].item() == 1
    guard.update(attempt, {"loss": torch.tensor(1.0)})
    guard.read()
    assert weight[0].item() < moved[0]
    assert optimizer.state[weight]["step"].item() == 2
