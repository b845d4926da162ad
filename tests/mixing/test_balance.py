"""Balancing methods against answers known by hand, and a step of them against the gradients of its tasks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import tiny
from palm.controller.controller import Controller
from palm.mixing.balance import BALANCES, DWA, FAMO, PCGrad, Uncertainty
from palm.train.loop import Training
from palm.train.train_step import balanced_gradients, gramian, sum_of_losses

OPPOSED = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
TASKS = ["a", "b"]


def combined(gradients: Tensor) -> list[float]:
    tasks = [str(number) for number in range(len(gradients))]
    factors = PCGrad().of_gradients(tasks, gradients @ gradients.T, np.random.default_rng(1))
    total: list[float] = (torch.tensor(factors, dtype=torch.float64) @ gradients).tolist()
    return total


def test_two_gradients_in_conflict_are_combined_as_in_the_paper() -> None:
    assert combined(OPPOSED) == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize("seed", range(10))
def test_gradients_are_projected_one_after_the_other(seed: int) -> None:
    gradients = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    draws = np.random.default_rng(1)
    total = torch.zeros(6, dtype=torch.float64)
    for task, gradient in enumerate(gradients):
        own = gradient.clone()
        for other in (k for k in draws.permutation(4) if k != task):
            own -= (
                min(float(own @ gradients[other]), 0.0) / gradients[other].square().sum() * gradients[other]
            )
        total += own
    assert combined(gradients) == pytest.approx(total.tolist())


def test_a_task_without_a_gradient_changes_nothing() -> None:
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert combined(torch.cat([OPPOSED, zero])) == pytest.approx(combined(OPPOSED))


def test_the_log_variance_of_a_task_goes_to_the_logarithm_of_its_loss() -> None:
    balance = Uncertainty(balance_rate=0.1)
    for _ in range(400):
        balance.observe(TASKS, [3.0, 0.2])
    assert balance.table("s") == pytest.approx({"a": math.log(3.0), "b": math.log(0.2)}, abs=1e-6)
    assert balance.of_losses(TASKS) == pytest.approx([1 / 3, 5], rel=1e-5)


def test_a_task_whose_loss_falls_more_slowly_gets_the_larger_average_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DWA, "STEPS", 2)
    balance = DWA()
    for losses in ([1.0, 2.0], [3.0, 2.0], [1.0, 2.0], [1.0, 2.0]):
        assert balance.of_losses(TASKS) == [1.0, 1.0]
        balance.observe(TASKS, losses)
    slow, steady = math.exp(0.5 / 2), math.exp(1.0 / 2)
    expected = [2 * slow / (slow + steady), 2 * steady / (slow + steady)]
    assert balance.of_losses(TASKS) == pytest.approx(expected)


def test_famo_weighs_losses_against_their_size_and_turns_to_the_one_that_lags() -> None:
    balance = FAMO(balance_rate=0.5)
    balance.observe(TASKS, [4.0, 1.0])
    assert balance.of_losses(TASKS) == pytest.approx([0.4, 1.6])
    for step in range(1, 20):
        balance.observe(TASKS, [4.0, 0.9**step])
    assert balance.table("logits")["a"] > 0 > balance.table("logits")["b"]


def test_what_a_method_learned_is_json_and_comes_back() -> None:
    for name in ("uncertainty", "dwa", "famo"):
        one, other = BALANCES[name](), BALANCES[name]()
        for losses in ([1.0, 2.0], [0.5, 1.9]):
            one.observe(TASKS, losses)
        other.load_state_dict(one.state_dict())
        assert other.of_losses(TASKS) == one.of_losses(TASKS)
        one.reset()
        assert one.state_dict() == {}


# In a run


def still(folder: Path, **settings: Any) -> Training:
    tiny.write_files(folder)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_prob": 0.0}
    made = tiny.config(folder, "cls", "match", tasks_per_step="all", **dropout, **settings)
    return Controller(made, argv=[]).training()


def test_factors_multiply_the_gradients_of_the_shared_encoder_alone(tmp_path: Path) -> None:
    training = still(tmp_path)
    drawn = training.task_batches([(task, task.batches(0)) for task in training.tasks])
    training.model.train()
    names, alone = [name for name, _ in training.model.named_parameters()], []
    for each in drawn:
        training.optimizer.zero_grad()
        sum_of_losses(training.replica, [each])
        alone.append([p.grad for p in training.model.parameters()])
    training.optimizer.zero_grad()
    seen: list[Tensor] = []

    def factors(products: Tensor) -> list[float]:
        seen.append(products)
        return [2.0, -0.5]

    balanced_gradients(training.replica, drawn, factors)
    shared = [k for k, pair in enumerate(zip(*alone, strict=True)) if all(g is not None for g in pair)]
    assert {names[k].partition(".")[0] for k in shared} == {"backbone"}
    torch.testing.assert_close(seen[0], gramian([[own[k] for k in shared] for own in alone]))
    flat = [torch.cat([own[k].flatten() for k in shared]).double() for own in alone]
    torch.testing.assert_close(seen[0], torch.stack(flat) @ torch.stack(flat).T, rtol=1e-5, atol=1e-9)
    for k, parameter in enumerate(training.model.parameters()):
        one, other = (own[k] for own in alone)
        expected = 2 * one - 0.5 * other if k in shared else one if other is None else other
        if expected is not None:
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=1e-7)


def test_factors_of_losses_multiply_them_in_the_gradient_and_not_in_the_log(tmp_path: Path) -> None:
    plain, balanced = (still(tmp_path, grad_clip=None, **own) for own in ({}, {"balance": "uncertainty"}))
    assert balanced.parts.balance is not None
    balanced.parts.balance.state = {"s": {"cls": math.log(2.0), "match": math.log(0.5)}}
    one, other = plain.next_step(), balanced.next_step()
    assert [p.loss.item() for p in other.parts] == [p.loss.item() for p in one.parts]
    for factor, task in ((0.5, "cls"), (2.0, "match")):
        ours, theirs = (t.model.head(task).out.weight.grad for t in (balanced, plain))
        torch.testing.assert_close(ours, theirs * factor)
