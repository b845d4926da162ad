"""The plan that `palm check` tells is that of the run, under every setting that changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.bag import with_bag
from palm.check import check
from palm.mixing import MIXINGS
from palm.train.callbacks import Planned
from palm.train.loop import Step

PLANNED: dict[str, list[Any]] = {
    "batch_size": [8],
    "effort": [{"effort": "quick", "num_epochs": None, "batch_size": None}],
    "gradient_accumulation_steps": [2],
    "max_steps": [13, 1000],
    "mix_ratio": [[1.0, 0.5, 0.25]],
    "mixing": [{"mixing": name} for name in MIXINGS if name != "mix_ratio"],
    "mixing_temperature": [{"mixing": "temperature", "mixing_temperature": 3}],
    "num_epochs": [1.3, {"num_epochs": None, "max_steps": 31}],
    "random_seed": [7],
    "sample": [{"match.sample": 9}],
    "sample_per_label": [{"match.sample_per_label": 4}],
    "seed": [3],
    "share_rows_with": [
        {"twin.share_rows_with": "cls"},
        {"twin.share_rows_with": "cls", "tasks_per_step": 2, "max_steps": 9},
    ],
    "shuffle": [False],
    "split": [{"match.split": {"dev": 0.25}}],
    "target_tag": [[1, 1, 1], [0, 1, 0]],
    "tasks_per_step": [2, "all", {"tasks_per_step": 2, "mix_ratio": [1.0, 0.3, 0.6], "max_steps": 11}],
    "where": [{"match.where": {"label": "1"}}],
}
"""Setting -> values under which the run has another plan; a mapping where that takes several settings."""


def three_tasks(folder: Path, **settings: Any) -> dict[str, Any]:
    """Tasks cls, twin (on the same rows) and match; cls and twin have dev data."""
    tiny.write_files(folder, rows=24)
    config = with_bag(tiny.config(folder, "cls", "match"))
    config["tasks"] = {"cls": config["tasks"]["cls"], "twin": None, "match": config["tasks"]["match"]}
    config["tasks"]["cls"]["dev_file"] = config["tasks"]["cls"]["train_file"]
    config["tasks"]["twin"] = dict(config["tasks"]["cls"])
    config |= {"task_instance": ["cls", "twin", "match"], "target_tag": [1, 1, 0]}
    return {name: value for name, value in {**config, **settings}.items() if value is not None}


CASES = [
    pytest.param(value if isinstance(value, dict) else {name: value}, id=f"{name}-{k}")
    for name, values in PLANNED.items()
    for k, value in enumerate(values)
]


@pytest.mark.parametrize("settings", CASES)
def test_check_shows_the_steps_and_the_rates_of_the_run(settings: dict[str, Any], tmp_path: Path) -> None:
    config = three_tasks(tmp_path, **settings)
    found = check(config, measure=False)
    assert found.plan is not None, found.problems
    rates: dict[int, float] = {}

    def watch(event: object) -> None:
        if isinstance(event, Step):
            rates[event.number] = event.learning_rate

    result = palm.Controller(config, argv=[]).train(callbacks=[watch])
    assert {task.task: task.planned for task in found.plan.tasks} == result.planned
    assert {task.task: task.drawn for task in found.plan.tasks} == result.steps
    assert found.plan.steps == len(rates) <= config.get("max_steps", 10**9)
    assert {step: rates[step] for step, _ in found.plan.rates} == pytest.approx(dict(found.plan.rates))


@pytest.mark.parametrize(("devices", "tasks_per_step"), [(3, 1), (2, "all")])
def test_on_several_devices_every_step_has_more_rows(
    devices: int, tasks_per_step: int | str, tmp_path: Path
) -> None:
    config = three_tasks(tmp_path, tasks_per_step=tasks_per_step)
    found = check({**config, "num_devices": devices}, measure=False)
    same = check({**config, "batch_size": 4 * devices}, measure=False)  # as many rows a step, on one device
    assert found.plan is not None
    assert same.plan is not None
    assert [(task.planned, task.drawn) for task in found.plan.tasks] == [
        (task.planned, task.drawn) for task in same.plan.tasks
    ]
    assert found.plan.steps == same.plan.steps
    assert dict(found.plan.rates) == pytest.approx(dict(same.plan.rates))


def test_the_steps_of_stages_are_those_of_their_runs(tmp_path: Path) -> None:
    stages = [
        {"name": "joint", "tasks_per_step": 2, "max_steps": 7},
        {"tasks": ["cls", "match"], "num_epochs": 0.5, "mixing": "round_robin"},
    ]
    config = three_tasks(tmp_path, stages=stages)
    found = check(config, measure=False)
    (told,) = (problem.message for problem in found.problems if problem.code == "stages")
    result = palm.Controller(config, argv=[]).train()
    planned = [line.tasks for line in result.history if isinstance(line, Planned)]
    assert len(planned) == 2
    for stage in planned:
        expected = ", ".join(f"{name} {plan.expected_steps}" for name, plan in stage.items())
        assert expected in told
    assert [line.total_steps for line in result.history if isinstance(line, Planned)] == [7, 6]
