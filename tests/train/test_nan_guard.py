"""Bad steps skipped by the device, batches made a step ahead, as on a GPU: the same steps and errors."""

from __future__ import annotations

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
from palm.train.train_step import NanGuard

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
    patch.setattr(loop, "decides_on_device", lambda *_: True)


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


def poisoned(training: Training, at: int, more: int) -> str:
    """Take steps, number `at` with a NaN weight, and return the error, `more` steps later."""
    weight = next(iter(training.model.head("cls").parameters()))
    with pytest.raises(TrainingError) as caught:  # noqa: PT012
        for number in range(1, at + more + 1):
            kept = weight.detach().clone()
            if number == at:
                weight.data.fill_(math.nan)
            try:
                training.next_step()
            finally:
                weight.data.copy_(kept) if number == at else None
        training.settle()
    return str(caught.value)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_moves_from_a_bad_step_on_until_it_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    at_once = run(folder, ["cls"], **rule)
    expected = poisoned(at_once, 4, 0)
    as_on_a_gpu(monkeypatch)
    late = run(folder, ["cls"], **rule)
    message = poisoned(late, 4, 2)

    assert message == expected
    assert re.match(r"task 'cls' at its step 4 \(global step 4\): .*loss is nan", message)
    assert (at_once.step, late.step) == (3, 6)
    ours, theirs = everything(at_once), everything(late)
    assert [n for n in ours if not n.endswith("step") and not torch.equal(ours[n], theirs[n])] == []


@pytest.mark.parametrize("look", ["state_dict", "averaged"])
def test_a_bad_step_is_reported_before_a_save_or_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    as_on_a_gpu(monkeypatch)
    training = run(folder, ["cls"])
    next(iter(training.model.head("cls").parameters())).data.fill_(math.nan)
    training.next_step()

    with pytest.raises(TrainingError, match=r"global step 1\): the loss is nan"):
        getattr(training, look)()


def test_the_device_skips_all_steps_after_a_bad_value_until_it_is_read() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    guard, moved = NanGuard(optimizer, on_device=True), []
    for number, loss in enumerate([1.0, math.inf, 1.0]):
        weight.grad = torch.ones(3)
        assert guard.update(f"step {number}", {"loss": torch.tensor(loss)}) is None
        moved.append(weight[0].item())
    with pytest.raises(TrainingError, match="step 1: the loss is inf"):
        guard.read()

    assert moved == [weight[0].item()] * 3
    assert optimizer.state[weight]["step"].item() == 1
    guard.update("step 3", {"loss": torch.tensor(1.0)})
    guard.read()
    assert weight[0].item() < moved[0]
    assert optimizer.state[weight]["step"].item() == 2
