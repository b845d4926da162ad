"""history.jsonl: what a run tells, and how a resumed run continues it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import fmean

import pytest

import palm
from helpers.callbacks import configuration, controller, timeless
from helpers.messages import raises
from palm.report.history import History, read_history
from palm.train.callbacks import (
    RECORDED,
    Drawn,
    Ended,
    Evaluated,
    Event,
    Logged,
    Losses,
    Planned,
    PlannedTask,
    Saved,
    ScoredRows,
    Warned,
    event_of,
    read_events,
    write_events,
)
from palm.train.loop import Step
from palm.train.result import TrainingResult


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, controller(folder).train()


def test_a_run_shows_its_plan_its_logged_steps_and_its_end(undisturbed: tuple[Path, TrainingResult]) -> None:
    folder, result = undisturbed
    lines = timeless(folder / "out" / "history.jsonl")
    start, *_, end = lines
    expected = {"is_target": True, "expected_steps": 20, "steps_per_epoch": 10, "rows": 40, "mix_ratio": 1.0}
    assert start["tasks"]["cls"] == expected
    last = sum(result.steps.values())
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == list(range(3, last + 1, 3))
    assert [line["rows"] for line in steps] == [4 * number for number in range(3, last + 1, 3)]
    assert all(line["grad_norm"] > 0 and line["tokens"] > line["rows"] for line in steps)
    assert end == {"event": "end", "step": last, "reason": "finished"}
    (draws,) = [line["steps"] for line in lines if line["event"] == "draws" and line["step"] == last]
    assert draws == result.steps


def test_means_are_of_all_steps_of_every_task_between_two_logged_steps(tmp_path: Path) -> None:
    losses: list[tuple[int, str, float]] = []

    def watch(event: Event) -> None:
        if isinstance(event, Step):
            losses.extend((event.number, part.task.name, part.loss.item()) for part in event.parts)

    controller(tmp_path, print_every_n_steps=7).train(callbacks=[watch])
    lines = timeless(tmp_path / "out" / "history.jsonl")
    found = [line for line in lines if line["event"] == "losses"]
    assert [line["step"] for line in found] == list(range(7, losses[-1][0] + 1, 7))
    for line in found:
        own = [each for each in losses if line["step"] - 7 < each[0] <= line["step"]]
        means = {name: fmean(loss for _, task, loss in own if task == name) for _, name, _ in own}
        assert line["means"] == pytest.approx(means, rel=1e-5)
    logged = {line["step"]: line["mean_loss"] for line in lines if line["event"] == "step"}
    assert {
        line["step"]: line["means"][task]
        for line, task in zip(found, [each[1] for each in losses][6::7], strict=True)
    } == logged


def test_a_loss_that_diverges_is_a_warning_once(tmp_path: Path) -> None:
    controller(tmp_path, print_every_n_steps=1, learning_rate=30.0, warmup_proportion=0.0).train()
    lines = timeless(tmp_path / "out" / "history.jsonl")
    means: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for task, mean in line["means"].items() if line["event"] == "losses" else ():
            means.setdefault(task, []).append((line["step"], mean))
    expected = {
        task: next(step for step, mean in own if mean > 3 * max(own[0][1], 1.0))
        for task, own in means.items()
    }
    told = [line for line in lines if line["event"] == "warning" and "diverged" in line["message"]]
    assert {line["message"].partition(":")[0]: line["step"] for line in told} == expected


def test_dev_rows_that_are_training_rows_and_a_score_below_the_commonest_label_are_warnings(
    tmp_path: Path,
) -> None:
    given = configuration(tmp_path, num_epochs=1)
    train = Path(given["tasks"]["cls"]["train_file"])
    lines = train.read_text(encoding="utf-8").splitlines()
    dev = tmp_path / "dev.tsv"
    dev.write_text(
        "\n".join([*lines[:8], "0\tfred owns a wall", "1\tthe lamp of anna"]) + "\n", encoding="utf-8"
    )
    given["tasks"]["cls"]["dev_file"] = str(dev)
    palm.Controller(given, argv=[]).train()
    events = timeless(tmp_path / "out" / "history.jsonl")
    told = [line["message"] for line in events if line["event"] == "warning"]
    assert any(
        message.startswith("cls: 7 of 9 rows of the dev_file are also in the train_file") for message in told
    )
    scored = [line["rows"]["cls"] for line in events if line["event"] == "evaluation"][-1]
    gold = [line.split("\t")[0] for line in dev.read_text(encoding="utf-8").splitlines()[1:]]
    assert scored["baseline"]["accuracy"] == pytest.approx(max(map(gold.count, gold)) / 9)
    assert {label: own[3] for label, own in scored["labels"].items() if own[3]} == {
        label: gold.count(label) for label in gold
    }


def test_evaluations_have_all_metrics_and_the_loss_of_the_dev_rows(
    undisturbed: tuple[Path, TrainingResult],
) -> None:
    folder, result = undisturbed
    found = [line for line in timeless(folder / "out" / "history.jsonl") if line["event"] == "evaluation"]
    assert [line["step"] for line in found] == sorted({line["step"] for line in found}) != []
    assert all({"accuracy", "macro_f1"} <= line["scores"]["cls"].keys() for line in found)
    assert all(0.5 < line["dev_loss"]["cls"] < 2 for line in found)
    best = [line for line in found if "cls" in line["best"]][-1]
    assert (result.best["cls"].step, result.best["cls"].scores) == (best["step"], best["scores"]["cls"])


@pytest.mark.parametrize("where", ["before the line of the checkpoint", "in the run after it", "at its end"])
def test_whatever_a_kill_left_is_cut_behind_the_checkpoint(
    undisturbed: tuple[Path, TrainingResult], tmp_path: Path, where: str
) -> None:
    shutil.copytree(undisturbed[0], tmp_path, dirs_exist_ok=True)
    history = tmp_path / "out" / "history.jsonl"
    lines = history.read_text(encoding="utf-8").splitlines()
    (saved,) = [k for k, line in enumerate(lines) if '"step": 20, "kind": "checkpoint"' in line]
    kept = {"before the line of the checkpoint": saved, "in the run after it": saved + 3, "at its end": None}
    torn = '{"event": "ste' if where == "in the run after it" else ""  # as far as the system came
    history.write_text("\n".join([*lines[: kept[where]], torn]), encoding="utf-8")

    result = controller(tmp_path, resume=str(tmp_path / "out" / "step_20")).train()
    assert timeless(history) == timeless(undisturbed[0] / "out" / "history.jsonl")
    seconds = [
        line["seconds"] for line in map(json.loads, history.read_text().splitlines()) if "seconds" in line
    ]
    assert seconds == sorted(seconds)
    assert result.seconds == pytest.approx(seconds[-1], abs=0.1)


EVENTS: list[Event] = [
    Planned(
        0, 1, "0.1.0", "2026-11-22T10:00:00Z", 30, "fp32", "cpu", {"a": PlannedTask(True, 20, 10, 80, 2)}
    ),
    Logged(10, "a", 6, 0, 6.5, 6.25, 4e-4, 0.5, 160, 2048, 1.5, 7),
    Losses(10, {"a": 6.25}),
    Drawn(10, {"a": 6}),
    Evaluated(
        10,
        {"a": {"f1": 0.5}},
        {"a": 2.0},
        ["a"],
        1.75,
        rows={"a": ScoredRows(4, {"f1": 0.25}, {"f1": [0.25, 0.75]}, {"x": [0.5, 0.5, 0.5, 2, 2]})},
    ),
    Saved(10, "target", Path("a/infer_model"), "a"),
    Saved(10, "checkpoint", Path("/elsewhere/step_10")),
    Warned(10, "one\u2028two\x85three"),
    Ended(10, "finished", 2.0),
]


def test_every_event_with_a_line_is_read_back_as_it_was(tmp_path: Path) -> None:
    assert {type(event) for event in EVENTS} == set(RECORDED.values())
    path = tmp_path / "history.jsonl"
    write_events(path, EVENTS)
    assert read_events(path) == EVENTS


def test_numbers_that_are_not_finite_are_null() -> None:
    line = Evaluated(1, {"a": {"f1": math.nan}}, {"a": math.inf}).as_line()
    assert (line["scores"], line["dev_loss"]) == ({"a": {"f1": None}}, {"a": None})
    event = event_of(line)
    assert isinstance(event, Evaluated)
    assert math.isnan(event.scores["a"]["f1"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", ["{broken"]),
        ("[" * 100_000, ["[["]),
        (r'{"event": "warning", "step": 1, "message": "half a pair: \ud800"}', ["half a pair"]),
        ("[1]", ["[1]"]),
        ('{"step": 1}', ["step"]),
        ('{"event": "draws"}', ["draws", "step"]),
        ('{"event": "draws", "step": 1}', ["'draws'", "steps"]),
        ('{"event": "draws", "step": 1, "steps": [1]}', ["'draws'", "steps is [1]"]),
        ('{"event": "draws", "step": 1, "steps": {"a": "x"}}', ["steps is {'a': 'x'}"]),
        ('{"event": "step", "step": true, "task": "a"}', ["step is True"]),
        ('{"event": "step", "step": 1, "task": "a", "loss": "low"}', ["loss is 'low'"]),
        ('{"event": "evaluation", "step": 1, "scores": {"a": 1}}', ["scores is {'a': 1}"]),
        ('{"event": "saved", "step": 1, "kind": "target", "path": 7}', ["path is 7"]),
        ('{"event": "start", "step": 0, "tasks": {"a": {"rows": 1.5}}}', ["rows is 1.5"]),
        ('{"event": "start", "step": 0, "version": 2}', ["version 2", "reads 1"]),
    ],
)
def test_a_damaged_line_is_named_with_its_cause(tmp_path: Path, line: str, words: list[str]) -> None:
    path = tmp_path / "history.jsonl"
    text = json.dumps(Drawn(1, {"a": 1}).as_line())
    path.write_text(f"{text}\n{line}\n{text}\n", encoding="utf-8")
    with raises(palm.StorageError, str(path), *words):
        read_events(path)


def test_a_last_line_that_a_kill_cut_off_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    whole = Warned(1, "größer")
    line = json.dumps(whole.as_line(), ensure_ascii=False).encode()
    for end in range(1, len(line)):
        path.write_bytes(line + b"\n" + line[:end])
        assert read_events(path) == [whole]
    path.write_bytes(b"")
    assert read_events(path) == []


# As values


def history_of(folder: Path, *events: Event) -> History:
    write_events(folder / "history.jsonl", events)
    return read_history(folder)


def test_events_are_grouped_by_kind(tmp_path: Path) -> None:
    start, logged, losses, drawn, evaluated, *saved, warned, end = EVENTS
    found = history_of(tmp_path, *EVENTS)
    assert found == History(start, [logged], [drawn], [evaluated], saved, [warned], end, [losses])
    assert (found.seconds, found.last_step) == (2.0, 10)


def test_a_run_that_went_on_after_an_interruption_has_not_ended(tmp_path: Path) -> None:
    events = [*EVENTS[:2], Ended(10, "interrupted", 2.0)]
    assert history_of(tmp_path, *events).end == events[-1]
    assert history_of(tmp_path, *events, Logged(20, "a")).end is None
