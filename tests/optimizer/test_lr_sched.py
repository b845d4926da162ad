"""Learning-rate schedules against recorded rates of both originals, transformers, and formulas of papers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from helpers.messages import raises
from helpers.shared import GOLDEN
from helpers.training_golden import RECORDED
from palm.core.errors import ConfigError, PalmError
from palm.optimizer.lr_sched import (
    TriangularScheduler,
    WarmupScheduler,
    schedule_of_run,
)

ROUNDING = 2 * np.finfo(np.float32).eps
"""The originals computed in float32, and rounded a quotient and a product."""

RATES = json.loads((GOLDEN / "lr_sched.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", RATES)
def test_rates_are_those_of_2_x(case: str) -> None:
    recorded = RATES[case]
    horizon = [recorded[key] for key in ("warmup_steps", "num_train_steps") if key in recorded]
    schedule = TriangularScheduler(*horizon) if len(horizon) == 2 else WarmupScheduler(*horizon)
    rates = [recorded["lr"] * schedule(step) for step in range(len(recorded["values"]))]
    np.testing.assert_allclose(rates, recorded["values"], rtol=0, atol=ROUNDING * recorded["lr"])


@pytest.mark.parametrize(
    ("run", "name", "proportion"),
    [("warmup", "linear_warmup_decay", 0.2), ("nowarmup", "linear_warmup_decay", 0.0), ("noam", "noam", 0.2)],
)
def test_rates_are_those_of_0_2_1(run: str, name: str, proportion: float) -> None:
    schedule = schedule_of_run(name, num_train_steps=20, warmup_proportion=proportion)
    rates = [1e-3 * schedule(step) for step in range(20)]
    np.testing.assert_allclose(rates, RECORDED[f"{run}/lr"], rtol=0, atol=1e-10)


def test_linear_decay_jumps_down_where_the_warm_up_ends_and_stays_at_zero() -> None:
    schedule = TriangularScheduler(4, 20)
    assert [schedule(step) for step in (0, 3, 4, 19)] == [0.0, 0.75, 0.8, pytest.approx(0.05)]
    assert [schedule(step) for step in (20, 21, 1000)] == [0.0, 0.0, 0.0]


def test_a_constant_rate_may_warm_up() -> None:
    warm = schedule_of_run("constant", 10, warmup_proportion=0.25)
    assert [warm(step) for step in (0, 1, 2, 9)] == [0.0, 0.5, 1.0, 1.0]
    assert [schedule_of_run("constant", 10)(step) for step in (0, 9)] == [1.0, 1.0]


def test_settings_rebuild_a_schedule() -> None:
    schedule = schedule_of_run("linear_warmup_decay", 135, 0.1)
    assert schedule.settings == {"warmup_steps": 13, "num_train_steps": 135}


@pytest.mark.parametrize(("warmup_steps", "num_train_steps"), [(-1, 10), (10, 10), (0, 0)])
def test_a_warm_up_is_shorter_than_the_run(warmup_steps: int, num_train_steps: int) -> None:
    with pytest.raises(ConfigError, match=rf"{warmup_steps}.*|num_train_steps.*{num_train_steps}"):
        TriangularScheduler(warmup_steps, num_train_steps)


def test_noam_without_a_warm_up_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"noam.*0.*warmup_proportion"):
        schedule_of_run("noam", 100)


def test_a_constant_rate_has_no_negative_warm_up() -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps.*-2"):
        WarmupScheduler(-2)


def test_an_unknown_schedule_is_named() -> None:
    with pytest.raises(PalmError, match="'constant'"):
        schedule_of_run("constnat", 10)


def test_schedules_without_a_seam_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    steps, warm_up, peak = 60, 12, 2e-3
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    theirs = {
        "linear": transformers.get_linear_schedule_with_warmup(optimizer, warm_up, steps),
        "cosine": transformers.get_cosine_schedule_with_warmup(optimizer, warm_up, steps),
        "constant": transformers.get_constant_schedule_with_warmup(optimizer, warm_up),
    }
    for name, schedule in theirs.items():
        ours = schedule_of_run(name, steps, warm_up / steps)
        for step in range(steps + 1):
            assert ours(step) == pytest.approx(schedule.lr_lambdas[0](step), abs=1e-12), (name, step)


def test_a_fall_ends_at_its_end_factor_and_stays_there() -> None:
    for name in ("linear", "cosine"):
        schedule = schedule_of_run(name, 40, 0.25, {"lr_end_factor": 0.2})
        assert [schedule(step) for step in (0, 5, 10)] == [0.0, 0.5, 1.0]
        assert [schedule(step) for step in (40, 41, 400)] == pytest.approx([0.2, 0.2, 0.2])
    linear = schedule_of_run("linear", 40, 0.25, {"lr_end_factor": 0.2})
    assert linear(25) == pytest.approx(0.6)  # half of the way from 1 to 0.2


@pytest.mark.parametrize(
    ("name", "steps", "proportion", "settings", "named"),
    [
        ("linear", 100, 0.0, {"lr_end_factor": 1.0}, ("lr_end_factor", "1.0")),
        ("helpers.components.Halving", 100, 0.1, {}, ("warmup_proportion", "Halving")),
    ],
)
def test_what_a_schedule_refuses(
    name: str, steps: int, proportion: float, settings: dict[str, Any], named: tuple[str, str]
) -> None:
    with raises(ConfigError, *named):
        schedule_of_run(name, steps, proportion, settings)


@pytest.mark.parametrize("steps", [2, 5, 9, 40])
def test_a_rate_with_a_warm_up_falls_to_0_however_short_the_run(steps: int) -> None:
    schedule = schedule_of_run("linear_warmup_decay", steps, 0.1)
    rates = [schedule(step) for step in range(steps + 1)]
    assert rates[-1] == 0
    assert max(rates) > 0
    assert schedule_of_run("linear_warmup_decay", 1, 0.1)(0) == 1
