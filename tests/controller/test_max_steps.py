"""`max_steps` ends a run: its plan, its schedule, its models, and runs that go on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import StorageError
from palm.mixing import MixRatio, TaskProgress
from palm.train.callbacks import Logged, Saved
from palm.train.task import StepPlan

A = TaskProgress(name="a", mix_ratio=1.0, rows=40, steps_per_epoch=10)
B = TaskProgress(name="b", mix_ratio=0.5, rows=40, steps_per_epoch=10, is_target=False)
C = TaskProgress(name="c", mix_ratio=1.0, rows=80, steps_per_epoch=20)


@pytest.mark.parametrize("tasks_per_step", [1, 2, "all"])
@pytest.mark.parametrize("max_steps", [5, 17, 100])
@pytest.mark.parametrize("num_epochs", [None, 1000])
def test_the_plan_fills_max_steps_and_keeps_the_proportions_of_tasks(
    tasks_per_step: Any, max_steps: int, num_epochs: float | None
) -> None:
    plan = StepPlan(
        tasks=[A, B, C], mixing=MixRatio(), tasks_per_step=tasks_per_step, max_steps=max_steps
    ).over_epochs(num_epochs)
    assert plan.total_steps == max_steps
    steps = plan.expected_steps
    assert abs(steps["a"] - steps["c"]) <= 1
    assert abs(steps["b"] - steps["a"] / 2) <= 1
    drawn = [name for names in plan.draws(seed=1) for name in names]
    assert {name: drawn.count(name) for name in steps} == steps


def test_the_schedule_ends_and_targets_are_saved_at_max_steps(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", max_steps=9, lr_scheduler="linear", random_seed=3)
    del config["num_epochs"]
    controller = Controller(config, argv=[])
    training = controller.training()
    assert (training.total_steps, training.schedule(9)) == (9, 0.0)
    result = controller.train()
    assert sum(result.steps.values()) <= 9
    models = [event for event in result.history if isinstance(event, Saved) and event.kind == "target"]
    saved = {event.task: event.step for event in models}
    assert saved.keys() == {"cls", "match"}
    assert max(saved.values()) <= 9
    for task in ("cls", "match"):
        assert palm.load_model(folder / "out" / task / "infer_model").task == task


def test_a_run_continues_to_its_max_steps_and_not_to_others(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", max_steps=9, save_every_n_steps=4, lr_scheduler="linear")
    whole = Controller(config, argv=[]).train()
    losses = {line.step: line.loss for line in whole.history if isinstance(line, Logged)}
    second = {"save_path": str(folder / "second"), "resume": str(folder / "out" / "step_4")}
    resumed = Controller({**config, **second}, argv=[]).train()
    again = {line.step: line.loss for line in resumed.history if isinstance(line, Logged)}
    assert again.keys() >= {5}
    assert {step: losses[step] for step in again} == again
    with raises(StorageError, "num_train_steps: 9 ", " 11 "):
        Controller({**config, **second, "max_steps": 11, "save_path": str(folder / "third")}, argv=[]).train()
