"""A run that goes on from a checkpoint is the uninterrupted run, bit by bit, whatever it is made of."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.equal import assert_resumes
from palm.train.saved_model import trained_weights

AVERAGES = {"use_ema": True, "ema_decay": 0.9}
THREE = ("cls", "match", "mlm")
LORA = {
    "cls.lora": {"rank": 2},
    "match.lora": {"rank": 3, "targets": ["key", "ffn.inner"]},
    "num_epochs": 0.5,
}
MIXED = {"match.batch_size": 2, "num_epochs": 1.5}

RUNS: dict[str, tuple[tuple[str, ...], int, dict[str, Any]]] = {
    "every kind of batch": ((), 17, {**AVERAGES, "num_epochs": 1}),
    "accumulated batches": (("cls",), 7, {"gradient_accumulation_steps": 2, "num_epochs": 3}),
    "frozen layers": (("cls", "match"), 9, {**AVERAGES, "freeze": 1, "backbone_learning_rate": 1e-4}),
    "two tasks a step in bf16": (THREE, 4, {**AVERAGES, "tasks_per_step": 2, "precision": "bf16"}),
    "an own balance": (THREE, 4, {"tasks_per_step": "all", "balance": "helpers.balances.EqualLosses"}),
    "a balance and accumulated batches": (
        THREE,
        4,
        {**AVERAGES, "tasks_per_step": 2, "balance": "uncertainty", "gradient_accumulation_steps": 2},
    ),
    "adapters": (THREE, 3, LORA),
    "adapters of a frozen encoder": (
        THREE,
        3,
        {**LORA, "tasks_per_step": "all", "freeze": "backbone", "use_ema": True, "ema_decay": 0.8},
    ),
    "activations computed again": (THREE, 3, {**LORA, "activation_checkpointing": True, "precision": "bf16"}),
    "proportional": (("cls", "match"), 9, {"mixing": "proportional", **MIXED}),
    "temperature": (("cls", "match"), 9, {"mixing": "temperature", "mixing_temperature": 4, **MIXED}),
    "round robin": (("cls", "match"), 9, {"mixing": "round_robin", **MIXED}),
    "an own mixing": (
        ("cls", "match"),
        9,
        {**MIXED, "mixing": "helpers.balances.OnlyFirst", "target_tag": [1, 0]},
    ),
}
"""Tasks, the step of the checkpoint, and settings."""


@pytest.mark.parametrize("run", RUNS)
def test_a_resumed_run_repeats_the_uninterrupted_one_and_every_target_gets_its_steps(
    folder: Path, run: str
) -> None:
    tasks, at, settings = RUNS[run]
    checkpoint = folder / "checkpoint"
    whole, steps = assert_resumes(
        lambda: tiny.controller(folder, *tasks, **settings).training(), checkpoint, at
    )
    for task in whole.tasks:
        finished = [each for name, _, each in chain.from_iterable(steps) if name == task.name]
        assert not task.is_target or finished.index(True) + 1 == task.expected_steps
    if "lora" in str(settings):
        with pytest.raises(palm.StorageError, match="lora"):
            trained_weights(checkpoint)
