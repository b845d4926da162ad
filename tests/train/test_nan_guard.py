"""Bad steps skipped by the device, batches made a step ahead, as on a GPU: the same steps and errors."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny
from helpers.equal import assert_resumes, differing, made, state_of
from helpers.messages import raises
from palm.core.errors import TrainingError
from palm.train import loop
from palm.train.loop import Training
from palm.train.train_step import NanGuard, check_finite

RULES: list[dict[str, Any]] = [
    {},
    {"optimizer": "lamb"},
    {"optimizer": "adamwdl"},
    {"epsilon_hat": True, "learning_rate": 1e-4},
]


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "decides_on_device", lambda *_: True)


def run(folder: Path, *tasks: str, **settings: Any) -> Training:
    return tiny.controller(folder, *tasks, num_epochs=1, **settings).training()


def test_a_run_continues_from_its_checkpoint_exactly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = run(folder, "cls", "mlm", "mrc")
    expected = [made(step) for step in at_once.steps()]
    as_on_a_gpu(monkeypatch)  # a checkpoint of step 7 is written while the eighth batch is there
    late, steps = assert_resumes(lambda: run(folder, "cls", "mlm", "mrc"), folder / "step_7", 7)
    assert steps == expected
    assert differing(state_of(late), state_of(at_once)) == []


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
    at_once = run(folder, "cls", **rule)
    expected = poisoned(at_once, 4, 0)
    as_on_a_gpu(monkeypatch)
    late = run(folder, "cls", **rule)
    message = poisoned(late, 4, 2)

    assert message == expected
    assert re.match(r"task 'cls' at its step 4 \(global step 4\): .*loss is nan", message)
    assert (at_once.step, late.step) == (3, 6)
    moved = differing(state_of(at_once), state_of(late))
    assert [name for name in moved if not name.endswith("step")] == []


@pytest.mark.parametrize("look", ["state_dict", "averaged"])
def test_a_bad_step_is_reported_before_a_save_or_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    as_on_a_gpu(monkeypatch)
    training = run(folder, "cls")
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


# Numbers that are none are found before they are saved.


def test_infinities_and_what_is_not_a_number_are_found_by_name() -> None:
    tensors = {
        "nan": torch.tensor([0.0, float("nan"), 1.0]),
        "large": torch.full((3,), 3e38),  # its square is infinite, it is not
        "infinite": torch.tensor([[1.0, -float("inf")]], dtype=torch.bfloat16),
        "count": torch.tensor(3),
        "empty": torch.zeros(0),
    }
    with raises(TrainingError, "in nan, infinite;"):
        check_finite(tensors, "the model")
