"""history.jsonl as values, also where a killed run left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palm.core.errors import StorageError
from palm.report.history import read_history
from palm.train.callbacks import Drawn, Ended, Evaluated, Logged, PlannedTask, Saved, Warned

START: dict[str, Any] = {
    "event": "start",
    "version": 1,
    "palm": "0.1.0",
    "time": "2026-11-22T10:00:00Z",
    "step": 0,
    "total_steps": 30,
    "precision": "fp32",
    "device": "cpu",
    "tasks": {
        "a": {"is_target": True, "expected_steps": 20, "steps_per_epoch": 10, "rows": 80, "mix_ratio": 2}
    },
}
STEP: dict[str, Any] = {
    "event": "step",
    "step": 10,
    "task": "a",
    "task_step": 6,
    "epoch": 0,
    "loss": 6.5,
    "mean_loss": 6.25,
    "learning_rate": 4e-4,
    "grad_norm": 0.5,
    "rows": 160,
    "tokens": 2048,
    "seconds": 1.5,
}


def written(folder: Path, *events: Any, tail: str = "") -> Path:
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "history.jsonl").write_text(text + tail, encoding="utf-8")
    return folder


def test_every_event_becomes_a_value(tmp_path: Path) -> None:
    history = read_history(
        written(
            tmp_path,
            START,
            STEP,
            {"event": "draws", "step": 10, "steps": {"a": 6}},
            {
                "event": "evaluation",
                "step": 10,
                "scores": {"a": {"f1": 0.5}},
                "dev_loss": {"a": 2.0},
                "best": ["a"],
            },
            {"event": "saved", "step": 10, "kind": "target", "task": "a", "path": "a/infer_model"},
            {"event": "warning", "step": 10, "message": "so"},
            {"event": "end", "step": 10, "reason": "finished", "seconds": 2.0},
        )
    )
    assert history.start.tasks == {"a": PlannedTask(True, 20, 10, 80, 2)}
    assert history.steps == [Logged(10, "a", 6, 0, 6.5, 6.25, 4e-4, 0.5, 160, 2048, 1.5)]
    assert history.draws == [Drawn(10, {"a": 6})]
    assert history.evaluations == [Evaluated(10, {"a": {"f1": 0.5}}, {"a": 2.0}, ["a"])]
    assert history.saved == [Saved(10, "target", Path("a/infer_model"), "a")]
    assert history.warnings == [Warned(10, "so")]
    assert (history.end, history.seconds, history.last_step) == (Ended(10, "finished", 2.0), 2.0, 10)


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    history = read_history(written(tmp_path, START, STEP, tail='{"event": "step", "st'))
    assert (len(history.steps), history.end, history.seconds) == (1, None, 1.5)


def test_a_run_that_went_on_after_an_interruption_has_not_ended(tmp_path: Path) -> None:
    end = {"event": "end", "step": 10, "reason": "interrupted", "seconds": 2.0}
    assert read_history(written(tmp_path, START, STEP, end)).end == Ended(10, "interrupted", 2.0)
    assert read_history(written(tmp_path, START, STEP, end, {**STEP, "step": 20})).end is None


def test_a_folder_without_a_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        read_history(tmp_path)
    assert str(tmp_path / "history.jsonl") in str(caught.value)
