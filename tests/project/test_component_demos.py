"""The demos that put components together in Python run from any working directory."""

from __future__ import annotations

import re
from pathlib import Path

import palm
from helpers.demo_runs import run


def test_demo4_trains_slots_and_intents_and_predicts_them_together(tmp_path: Path) -> None:
    output = run("demo4", tmp_path, "--num_epochs", "0.1")
    assert "slot: expected train steps 6." in output
    assert "intent train finish!" in output
    assert re.search(r"slots: entity F1 \d\.\d+; intents: \d+ of 200 right", output)
    for task in ("slot", "intent"):
        assert (
            len((tmp_path / "out" / "predict" / task / "predictions.json").read_text("utf-8").splitlines())
            == 200
        )


def test_demo8_keeps_the_best_model(tmp_path: Path) -> None:
    output = run("demo8", tmp_path, "--num_epochs", "1")
    assert "epoch 0: loss " in output
    assert palm.load_model(tmp_path / "out" / "best").task == "intent"
