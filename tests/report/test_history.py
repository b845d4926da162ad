"""history.jsonl as values, also where a killed run left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palm.core.errors import StorageError
from palm.report.history import Draws, End, Evaluated, LoggedStep, PlannedTask, Saved, Warned, read_history

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
    "grad_norm": None,
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
    assert history.steps == [LoggedStep(10, "a", 6, 0, 6.5, 6.25, 4e-4, None, 160, 2048, 1.5)]
    assert history.draws == [Draws(10, {"a": 6})]
    assert history.evaluations == [Evaluated(10, {"a": {"f1": 0.5}}, {"a": 2.0}, ["a"])]
    assert history.saved == [Saved(10, "target", "a/infer_model", "a")]
    assert history.warnings == [Warned(10, "so")]
    assert (history.end, history.seconds, history.last_step) == (End(10, "finished", 2.0), 2.0, 10)


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    history = read_history(written(tmp_path, START, STEP, tail='{"event": "step", "st'))
    assert (len(history.steps), history.end, history.seconds) == (1, None, 1.5)


def test_unknown_events_and_fields_are_left_out(tmp_path: Path) -> None:
    history = read_history(written(tmp_path, START, {**STEP, "mood": 1}, {"event": "transfer", "step": 1}))
    assert len(history.steps) == 1


def test_a_run_that_went_on_after_an_interruption_has_not_ended(tmp_path: Path) -> None:
    end = {"event": "end", "step": 10, "reason": "interrupted", "seconds": 2.0}
    assert read_history(written(tmp_path, START, STEP, end)).end == End(10, "interrupted", 2.0)
    assert read_history(written(tmp_path, START, STEP, end, {**STEP, "step": 20})).end is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"history\.jsonl:2: not JSON .*restore the file"),
        ("[1]", r"history\.jsonl:2: expected an event \{\.\.\.\}, not '\[1\]'"),
        ('{"event": "draws"}', r"history\.jsonl:2: 'draws' lacks step, steps; restore the file"),
        (json.dumps({**START, "version": 2}), "has version 2, this palm reads 1; use a newer palm"),
    ],
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "history.jsonl").write_text("\n".join([json.dumps(START), line, json.dumps(STEP)]))
    with pytest.raises(StorageError, match=message):
        read_history(tmp_path)


def test_a_folder_without_a_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"history\.jsonl: No such file .*name the save_path of a run"):
        read_history(tmp_path)
