"""Mixing strategies: shares and plans worked out by hand, realised counts, exact resumption."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import palm.compat as palm
from helpers import tiny
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, PalmError
from palm.mixing import Mixing, MixRatio, Proportional, RoundRobin, TaskProgress, Temperature
from palm.mixing.balance import Uncertainty
from palm.mixing.strategies import first_target, plan_steps
from palm.train.loop import Training

SMALL = TaskProgress(name="small", mix_ratio=1.0, rows=100, steps_per_epoch=10)
LARGE = TaskProgress(name="large", mix_ratio=1.0, rows=10_000, steps_per_epoch=1000)
WIDE = TaskProgress(
    name="wide", mix_ratio=1.0, rows=10_000, steps_per_epoch=100
)  # batches ten times as large


class SmallFirst(Mixing):
    """A strategy of a user's own, whose shares change on the way."""

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        return [1 / (task.rows + task.step) for task in tasks]


def test_by_mix_ratio_nothing_changes() -> None:
    tasks = [replace(SMALL, mix_ratio=ratio, steps_per_epoch=100) for ratio in (1.0, 0.29, 0.5)]
    planned = [plan_steps(1, ratio, 100) for ratio in (1.0, 0.29, 0.5)]
    assert MixRatio().expected_steps(tasks, 0, 1) == planned == [100, 28, 50]


def test_in_proportion_every_task_gets_passes_over_its_own_rows() -> None:
    tasks = [SMALL, LARGE, WIDE, replace(LARGE, mix_ratio=0.5)]
    assert Proportional().weights(tasks) == [10.0, 1000.0, 100.0, 500.0]
    assert Proportional().expected_steps(tasks, 0, 3) == [30, 3000, 300, 1500]
    assert Proportional().expected_steps(tasks, 1, 3) == [30, 3000, 300, 1500]


def test_no_quotient_of_sizes_costs_a_step() -> None:
    for size in range(1, 300):
        tasks = [replace(SMALL, steps_per_epoch=n, rows=n) for n in (size, 49, 7)]
        assert Proportional().expected_steps(tasks, 0, 1) == [size, 49, 7]
        assert Temperature(3.0).expected_steps(tasks, 0, 1)[0] == size


def test_a_temperature_makes_tasks_more_equal() -> None:
    # sqrt(100) = 10 and sqrt(10000) = 100 rows.
    weights = Temperature(2.0).weights([SMALL, LARGE, WIDE])
    assert weights == pytest.approx([1.0, 10.0, 1.0])
    assert Temperature(2.0).expected_steps([SMALL, LARGE, WIDE], 0, 3) == [30, 300, 30]
    assert Temperature(1.0).weights([SMALL, LARGE]) == Proportional().weights([SMALL, LARGE])
    assert Temperature(1e9).weights([SMALL, LARGE]) == pytest.approx([0.1, 0.1])


def test_round_robin_takes_tasks_in_turn_and_keeps_to_their_ratios() -> None:
    def order(ratios: list[float], count: int) -> list[int]:
        tasks, drawn = [replace(SMALL, mix_ratio=ratio) for ratio in ratios], []
        for step in range(count):
            drawn.append(RoundRobin().draw(1, step, tasks))
            tasks[drawn[-1]] = replace(tasks[drawn[-1]], step=tasks[drawn[-1]].step + 1)
        return drawn

    assert order([1, 1, 1], 7) == [0, 1, 2, 0, 1, 2, 0]
    assert order([1, 0.5, 0.5], 8) == [0, 1, 2, 0, 0, 1, 2, 0]
    assert Counter(order([1, 0.3, 0], 130)) == {0: 100, 1: 30}


@pytest.mark.parametrize(("mixing", "shares"), [(Proportional(), [10, 1000]), (Temperature(2.0), [10, 100])])
def test_draws_have_the_frequencies_of_the_shares(mixing: Mixing, shares: list[float]) -> None:
    tasks, draws = [SMALL, LARGE], 2000  # without a plan
    count = sum(mixing.draw(5, step, tasks) for step in range(draws))
    chance = shares[1] / sum(shares)
    assert abs(count - draws * chance) < 4 * math.sqrt(draws * chance * (1 - chance))


@pytest.mark.parametrize(("make", "message"), [(lambda: Temperature(0.5), "mixing_temperature: 0.5")])
def test_what_a_strategy_cannot_do_is_reported(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_unknown_strategy_and_a_setting_of_another_are_reported(folder: Path) -> None:
    with pytest.raises(PalmError, match=r"mixing.*'proportionl'.*'proportional'"):
        tiny.controller(folder, "cls", mixing="proportionl")
    with pytest.raises(PalmError, match=r"mixing_temperature.*temperature.*mix_ratio"):
        tiny.controller(folder, "cls", mixing_temperature=2)


def test_counts_are_logged_beside_the_plan(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"mix_ratio": [1, 0.5], "target_tag": [1, 0], "mixing": "round_robin"}
    with caplog.at_level(logging.INFO, "palm"):
        tiny.controller(folder, "cls", "match", **settings).train()
    lines = [record.getMessage() for record in caplog.records]
    rows = [line.split() for line in lines if line.startswith(("cls  ", "match  "))]
    assert [row[:3] for row in rows] == [["cls", "20", "20"], ["match", "10", "10"]]


def test_a_loss_weight_scales_the_gradient_and_a_rate_factor_the_rate(folder: Path) -> None:
    def after_one(**own: float) -> tuple[float, float, torch.Tensor]:
        settings = {f"cls.{name}": value for name, value in own.items()}
        run = tiny.controller(folder, "cls", warmup_proportion=0, grad_clip=None, weight_decay=0, **settings)
        training = run.training()
        step = training.next_step()
        gradient = next(training.model.head("cls").parameters()).grad
        assert gradient is not None
        return step.loss.item(), step.learning_rate, gradient.clone()

    loss, rate, gradient = after_one()
    assert after_one(loss_weight=0.25)[:2] == (loss, rate)
    torch.testing.assert_close(after_one(loss_weight=0.25)[2], gradient / 4, rtol=0, atol=0)
    assert after_one(learning_rate_factor=0.25)[:2] == (loss, rate / 4)


def test_tasks_have_batch_sizes_and_lengths_of_their_own(folder: Path) -> None:
    settings = {"cls.batch_size": 8, "cls.max_seq_len": 6, "cls.loss_weight": 2.0}
    cls, match = tiny.controller(folder, "cls", "match", **settings).training().tasks
    assert cls.stream is not None
    assert match.stream is not None
    assert cls.stream.batch(0)["token_ids"].shape == (8, 6)
    assert match.stream.batch(0)["token_ids"].shape[0] == 4
    assert match.stream.batch(0)["token_ids"].shape[1] > 6
    assert (cls.task.loss_weight, match.task.loss_weight) == (2.0, 1.0)


@pytest.mark.parametrize("name", ["loss_weight", "learning_rate_factor"])
def test_factors_are_above_zero(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"task 'cls': {name}: 0.0 "):
        tiny.controller(folder, "cls", **{name: 0})


# Planned draws


def drawn(mixing: Mixing, tasks: Sequence[TaskProgress], seed: int = 1) -> list[int]:
    """The order in which a run draws tasks until its targets have had their steps."""
    tasks, order = list(tasks), []
    while any(task.is_target and task.step < task.expected_steps for task in tasks):
        order.append(mixing.draw(seed, len(order), tasks))
        tasks[order[-1]] = replace(tasks[order[-1]], step=tasks[order[-1]].step + 1)
    return order


def planned(mixing: Mixing, tasks: Sequence[TaskProgress], epochs: float) -> list[TaskProgress]:
    counts = mixing.expected_steps(tasks, first_target(tasks), epochs)
    return [replace(task, expected_steps=count) for task, count in zip(tasks, counts, strict=True)]


STRATEGIES = [MixRatio(), Proportional(), Temperature(3.0), RoundRobin(), SmallFirst()]


@pytest.mark.parametrize("mixing", STRATEGIES, ids=lambda mixing: type(mixing).__name__)
@settings(deadline=None, max_examples=20)
@given(
    ratios=st.lists(st.floats(0.05, 3.0), min_size=2, max_size=4),
    targets=st.lists(st.booleans(), min_size=4, max_size=4),
    sizes=st.lists(st.integers(5, 40), min_size=4, max_size=4),
    epochs=st.floats(1.1, 4.0),
    seed=st.integers(0, 100),
)
def test_every_task_gets_exactly_its_planned_steps_and_the_run_no_more(
    mixing: Mixing, ratios: list[float], targets: list[bool], sizes: list[int], epochs: float, seed: int
) -> None:
    tasks = [
        TaskProgress(name=str(k), mix_ratio=ratio, rows=8 * sizes[k], steps_per_epoch=sizes[k], is_target=t)
        for k, (ratio, t) in enumerate(zip(ratios, [*targets[: len(ratios) - 1], True], strict=False))
    ]
    tasks = planned(mixing, tasks, epochs)
    assume(all(task.expected_steps for task in tasks if task.is_target))  # otherwise no run begins
    order = drawn(mixing, tasks, seed)
    assert [order.count(k) for k in range(len(tasks))] == [task.expected_steps for task in tasks]


@pytest.mark.parametrize("seed", range(20))
def test_two_targets_with_a_warm_up_never_train_at_rate_0_but_in_the_schedules_own_steps(seed: int) -> None:
    tasks = planned(MixRatio(), [SMALL, replace(SMALL, name="other")], 20)
    schedule = palm.lr_sched.TriangularScheduler(40, 400)
    order = drawn(MixRatio(), tasks, seed)
    assert Counter(order) == {0: 200, 1: 200}
    assert [step for step in range(len(order)) if schedule(step) == 0] == [0]
    ends = [max(step for step, k in enumerate(order) if k == task) for task in (0, 1)]
    assert min(ends) >= 400 - 20  # within the last epoch of both


def test_all_tasks_keep_step_with_the_main_one_and_longer_runs_begin_alike() -> None:
    tasks = [SMALL, replace(SMALL, mix_ratio=0.5, is_target=False), replace(SMALL, mix_ratio=0.25)]
    short, long = (drawn(MixRatio(), planned(MixRatio(), tasks, epochs)) for epochs in (2, 7))
    assert long[: len(short)] == short
    for epoch in range(1, 7):  # 10, 5 and 2.5 steps an epoch
        steps = 10 * epoch + 5 * epoch + int(2.5 * epoch)
        assert [long[:steps].count(k) for k in range(3)] == [10 * epoch, 5 * epoch, int(2.5 * epoch)]
    assert long[:17] != long[17:34]


def test_readers_with_epochs_of_their_own_mix_from_the_first_step_to_the_last() -> None:
    tasks = [replace(SMALL, expected_steps=100), replace(SMALL, expected_steps=300)]
    order = drawn(MixRatio(), tasks)
    assert Counter(order) == {0: 100, 1: 300}
    assert abs(order[:200].count(0) - 50) < 25


# Balancing against answers known by hand, and in a step of a run.


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
