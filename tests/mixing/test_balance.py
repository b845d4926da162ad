"""Balancing against answers known by hand, and in a step of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny
from palm.controller.controller import Controller
from palm.mixing.balance import Uncertainty
from palm.train.loop import Training

TASKS = ["a", "b"]


def test_the_log_variance_of_a_task_goes_to_the_logarithm_of_its_loss() -> None:
    balance = Uncertainty()
    for _ in range(1600):
        balance.observe(TASKS, [3.0, 0.2])
    assert balance.table("s") == pytest.approx({"a": math.log(3.0), "b": math.log(0.2)}, abs=1e-6)
    assert balance.of_losses(TASKS) == pytest.approx([1 / 3, 5], rel=1e-5)


def test_what_a_method_learned_is_json_and_comes_back() -> None:
    one, other = Uncertainty(), Uncertainty()
    for losses in ([1.0, 2.0], [0.5, 1.9]):
        one.observe(TASKS, losses)
    other.load_state_dict(one.state_dict())
    assert other.of_losses(TASKS) == one.of_losses(TASKS) != [1.0, 1.0]
    one.reset()
    assert one.state_dict() == {}


# In a run


def still(folder: Path, **settings: Any) -> Training:
    tiny.write_files(folder)
    dropout = {**tiny.STILL, "dropout_prob": 0.0}
    made = tiny.config(folder, "cls", "match", tasks_per_step="all", **dropout, **settings)
    return Controller(made, argv=[]).training()


def test_factors_of_losses_multiply_them_in_the_gradient_and_not_in_the_log(tmp_path: Path) -> None:
    plain, balanced = (still(tmp_path, grad_clip=None, **own) for own in ({}, {"balance": "uncertainty"}))
    assert balanced.parts.balance is not None
    balanced.parts.balance.state = {"s": {"cls": math.log(2.0), "match": math.log(0.5)}}
    one, other = plain.next_step(), balanced.next_step()
    assert [p.loss.item() for p in other.parts] == [p.loss.item() for p in one.parts]
    for factor, task in ((0.5, "cls"), (2.0, "match")):
        ours, theirs = (t.model.head(task).out.weight.grad for t in (balanced, plain))
        torch.testing.assert_close(ours, theirs * factor)
