"""Runs to report on: really trained, tiny, with dev data and a history."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import palm
from helpers import tiny

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
"""A row that would run if it were not escaped."""

LINE = re.compile(r"Global step: (\d+)\. Task: (\w+), step \d+/(\d+) \(epoch (\d+)\), loss: ([\d.]+)")


def run_and_record(config: dict[str, Any], argv: list[str], run: Path) -> Path:
    """Train a configuration whose `save_path` is `run`."""
    controller = palm.Controller({"print_every_n_steps": 1, **config}, argv=argv)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("palm").addHandler(handler)
    logging.getLogger("palm").setLevel(logging.INFO)
    try:
        controller.train()
    finally:
        logging.getLogger("palm").removeHandler(handler)
    if not (run / "history.jsonl").exists():
        _write_history(run, lines, controller)
    return run


def train(folder: Path, *tasks: str, rows: int = 40, **settings: Any) -> Path:
    """Train tiny tasks that are evaluated on their training data, and return the run's folder.

    The dev data of `cls` are its first twelve rows and a hostile one.
    """
    tiny.write_files(folder, rows)
    given = tiny.config(folder, *tasks, **{"save_path": str(folder / "run"), **settings})
    for task in given["tasks"].values():
        task["dev_file"] = task["train_file"]
    if "cls" in given["tasks"]:
        lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[:13]
        (folder / "dev.tsv").write_text("\n".join([*lines, f"3\t{HOSTILE}"]) + "\n", encoding="utf-8")
        given["tasks"]["cls"]["dev_file"] = str(folder / "dev.tsv")
    return run_and_record(given, [], Path(given["save_path"]))


def _write_history(run: Path, lines: list[str], controller: palm.Controller) -> None:
    """What the run would have written itself."""
    tasks = controller._parts.tasks  # type: ignore[union-attr]
    total = sum(task.expected_steps for task in tasks)
    events: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    means: dict[str, list[float]] = {}
    steps = [match for line in lines if (match := LINE.match(line))]
    for match in steps:
        number, task, loss = int(match[1]), match[2], float(match[5])
        counts[task] = counts.get(task, 0) + 1
        means.setdefault(task, []).append(loss)
        recent = means[task][-20:]
        events.append(
            {
                "event": "step",
                "step": number,
                "task": task,
                "task_step": counts[task],
                "epoch": int(match[4]),
                "loss": loss,
                "mean_loss": sum(recent) / len(recent),
                "learning_rate": 1e-3 * min(number / (0.1 * total), 1.0) * (1 - number / (total + 1)),
                "grad_norm": 1 + loss,
                "rows": 4 * number,
                "tokens": 40 * number,
                "seconds": 0.05 * number,
            }
        )
        if number % 10 == 0 or match is steps[-1]:
            events.append({"event": "draws", "step": number, "steps": dict(counts)})
    last = int(steps[-1][1])
    best: dict[str, float] = {}
    for line in (run / "evaluation.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        firsts = {task: next(iter(scores.values())) for task, scores in found["scores"].items()}
        better = [task for task, score in firsts.items() if score > best.get(task, -1)]
        best |= {task: firsts[task] for task in better}
        losses = {task: 1.0 - score / 200 for task, score in firsts.items()}
        events.append({"event": "evaluation", **found, "dev_loss": losses, "best": better, "seconds": 1.0})
    for model in sorted(run.glob("*/infer_model")):
        task = model.parent.name
        events.append(
            {"event": "saved", "step": last, "kind": "target", "task": task, "path": f"{task}/infer_model"}
        )
    start = {
        "event": "start",
        "version": 1,
        "palm": palm.__version__,
        "time": "2026-11-22T10:00:00Z",
        "step": 0,
        "total_steps": total,
        "precision": "fp32",
        "device": "cpu",
        "tasks": {
            task.name: {
                "is_target": task.is_target,
                "expected_steps": task.expected_steps,
                "steps_per_epoch": task.steps_per_epoch,
                "rows": len(task.stream.rows),  # type: ignore[union-attr]
                "mix_ratio": task.mix_ratio,
            }
            for task in tasks
        },
    }
    events.sort(key=lambda event: event["step"])
    end = {"event": "end", "step": last, "reason": "finished", "seconds": 0.05 * last}
    text = "".join(json.dumps(event) + "\n" for event in [start, *events, end])
    (run / "history.jsonl").write_text(text, encoding="utf-8")
