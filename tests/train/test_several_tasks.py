"""Several tasks in one step: the gradient is the sum of separate ones, and runs of them resume exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import tiny
from palm.mixing import MixRatio, TaskProgress
from palm.mixing.strategies import draw_tasks, inclusion_probabilities, planned_updates
from palm.train.callbacks import Logged
from palm.train.loop import Training
from palm.train.train_step import sum_of_losses


def run(folder: Path, *tasks: str, **settings: Any) -> Training:
    return tiny.controller(folder, *tasks, **settings).training()


def still(folder: Path, *tasks: str, **settings: Any) -> Training:
    """A run without dropout."""
    with_dropout = [task for task in ("cls", "match") if task in (tasks or ("cls", "match"))]
    dropout = {f"{task}.dropout_prob": 0.0 for task in with_dropout}
    return run(folder, *tasks, **tiny.STILL, **dropout, **settings)


def gradients(training: Training, *names: str) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient, and the losses, of one pass over the next batches of some tasks."""
    tasks = [task for task in training.tasks if task.name in names]
    drawn = [(task, task.batches(task.step)) for task in tasks]
    training.model.train()
    training.optimizer.zero_grad()
    losses = sum_of_losses(training.replica, training.task_batches(drawn))
    found = {n: p.grad.clone() for n, p in training.model.named_parameters() if p.grad is not None}
    return found, losses


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_gradient_of_a_step_of_several_tasks_is_the_sum_of_separate_ones(
    folder: Path, accumulated: int
) -> None:
    # Tasks of other lengths, with masked positions, with spans, of one accumulated part and of several.
    training = still(folder, **{"cls.loss_weight": 0.5, "match.gradient_accumulation_steps": accumulated})
    names = [task.name for task in training.tasks]
    together, losses = gradients(training, *names)
    expected: dict[str, Tensor] = {}
    alone = []
    for name in names:
        own, loss = gradients(training, name)
        alone.append(loss)
        for key, value in own.items():
            expected[key] = expected.get(key, torch.zeros_like(value)) + value
    torch.testing.assert_close(losses, torch.cat(alone), atol=2e-6, rtol=0)
    torch.testing.assert_close(together, expected, atol=2e-6, rtol=1e-4)


def test_all_tasks_of_a_step_are_encoded_in_one_pass(folder: Path) -> None:
    training, calls = still(folder, tasks_per_step="all"), []
    encoder = training.model.backbone
    encoder.register_forward_hook(lambda _, given, __: calls.append(given[0]["token_ids"].shape))
    step = training.next_step()
    assert [part.task.name for part in step.parts] == ["cls", "match", "mlm", "mrc"]
    longest = max(batch["token_ids"].shape[1] for part in step.parts for batch in part.batches)
    assert calls == [(16, longest)]
    assert (training.rows, training.step) == (16, 1)
    assert [task.step for task in training.tasks] == [1, 1, 1, 1]


def test_a_run_of_several_tasks_a_step_ends_when_its_targets_have_had_their_steps(folder: Path) -> None:
    both = tiny.controller(folder, "cls", "match", tasks_per_step="all")
    result = both.train()
    assert result.steps == {"cls": 20, "match": 20}
    lines = [line for line in result.history if isinstance(line, Logged)]
    assert [(line.step, line.task) for line in lines[:2]] == [(5, "cls"), (5, "match")]
    assert max(line.step for line in result.history) == 20
    assert (folder / "out" / "match" / "infer_model").is_dir()


# The draw


def test_a_task_is_among_those_of_a_step_as_often_as_its_share_says() -> None:
    weights = [5.0, 3.0, 1.0, 0.0, 1.0]
    assert inclusion_probabilities(weights, 3) == pytest.approx([1, 1, 0.5, 0, 0.5])
    chances = inclusion_probabilities(weights, 2)
    assert chances == pytest.approx([1, 0.6, 0.2, 0, 0.2])
    draws = [draw_tasks(1, step, chances) for step in range(4000)]
    assert {len(set(drawn)) for drawn in draws} == {2}
    counts = [sum(k in drawn for drawn in draws) / len(draws) for k in range(5)]
    assert counts == pytest.approx([1, 0.6, 0.2, 0, 0.2], abs=0.02)
    assert draw_tasks(1, 7, inclusion_probabilities(weights, 9)) == [0, 1, 2, 4]


def progress(*plans: tuple[int, bool], ratios: Sequence[float] = (1.0, 1.0, 1.0, 1.0)) -> list[TaskProgress]:
    return [
        TaskProgress(name=str(k), mix_ratio=ratio, rows=40, steps_per_epoch=10, is_target=t, expected_steps=n)
        for k, ((n, t), ratio) in enumerate(zip(plans, ratios, strict=False))
    ]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    "plans",
    [
        [(20, True), (20, True), (20, True)],
        [(20, True), (10, False), (3, False)],
        [(9, True), (31, False), (7, True), (13, False)],
        [(2, True), (5, False), (5, False)],
    ],
)
def test_every_task_has_exactly_its_plan_when_the_last_planned_step_is_made(
    plans: list[tuple[int, bool]], count: int
) -> None:
    for seed in range(20):
        tasks, steps = progress(*plans), 0
        while any(task.step < task.expected_steps for task in tasks if task.is_target):
            drawn = MixRatio().draw_several(seed, steps, tasks, count)
            assert 1 <= len(drawn) <= count
            tasks = [replace(task, step=task.step + (k in drawn)) for k, task in enumerate(tasks)]
            steps += 1
        assert [task.step for task in tasks] == [own for own, _ in plans]
        assert steps == planned_updates([own for own, _ in plans], count)


def test_a_strategy_draws_one_task_as_ever() -> None:
    tasks = progress((40, True), (40, True), (20, True), (0, False), ratios=(1.0, 1.0, 0.5, 0.0))
    assert [MixRatio().draw_several(1, k, tasks, 1) for k in range(30)] == [
        [MixRatio().draw(1, k, tasks)] for k in range(30)
    ]


# Mistakes
