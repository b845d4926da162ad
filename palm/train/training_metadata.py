"""Metadata of a saved model: its data, steps, scores and training settings."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from palm.core.version import __version__
from palm.parallel.group import is_main_process
from palm.reader.tables.files import file_facts
from palm.reader.tables.selection import data_checksum
from palm.train.comparison import compared
from palm.train.evaluation import Evaluator, json_ready
from palm.train.loop import Training
from palm.train.task import TaskState

MAX_TASKS = 50
"""Maximum number of tasks whose steps a model lists; without it, a run's folder would grow quadratically."""


def training_facts(training: Training, task: TaskState, best: bool = False) -> dict[str, Any]:
    """Return the metadata of a task's model in its current state, JSON-ready, with file names but no paths.

    Warns if the task's data has changed during training.

    Returns:
        `step`, `task_step`, `expected_steps` and `epochs`; `num_tasks`, the number of tasks that share the
        encoder; `tasks`, the steps of the first ones and of this one; `data`, files with rows and SHA-256;
        `evaluation`, the last one with its step; `best`, True if the model is saved as the best; `settings`
        that the losses depend on, without other tasks; `versions`. Empty on ranks other than 0.
    """
    if not is_main_process():
        return {}
    task.warn_of_changed_files()
    settings = compared(training)
    del settings["task_instance"]
    return {
        "step": training.step,
        "task_step": task.step,
        "expected_steps": task.expected_steps,
        "epochs": round(task.step / task.steps_per_epoch, 2),
        "num_tasks": len(training.tasks),
        "tasks": {each.name: each.step for each in (*training.tasks[:MAX_TASKS], task)},
        "data": data_of(training, task),
        "evaluation": _evaluation(training, task),
        "best": best,
        "settings": {**settings, "tasks": {task.name: settings["tasks"][task.name]}},
        "versions": {"palm": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def data_of(training: Training, task: TaskState) -> dict[str, Any]:
    """Describe a task's training data, and its dev data if the run evaluates it: name, rows and SHA-256."""
    data: dict[str, Any] = {}
    if task.task.train_file is not None:
        data["train_file"] = {"rows": len(task.stream.rows), **_file(task.task.train_file)}
    evaluator = _evaluator(training)
    if task.task.dev_file is not None and evaluator is not None:
        dev = evaluator.dev[task.name]
        data["dev_file"] = {"rows": dev.num_examples, "name": task.task.dev_file.name, "sha256": dev.sha256}
    return data


def _evaluator(training: Training) -> Evaluator | None:
    evaluator = training.attached("evaluator")
    return evaluator if isinstance(evaluator, Evaluator) else None


def _evaluation(training: Training, task: TaskState) -> dict[str, Any] | None:
    evaluator = _evaluator(training)
    if evaluator is None or not evaluator.evaluations:
        return None
    last = evaluator.evaluations[-1]
    if task.name not in last.scores:
        return None
    return {"step": last.step, "scores": json_ready(last.scores[task.name])}


def _file(path: Path) -> dict[str, Any]:
    # A file whose size and modification time have not changed is not read again.
    return {"name": path.name, "sha256": _checksum(path, file_facts(path))}


@lru_cache(maxsize=64)
def _checksum(path: Path, facts: object) -> str:  # noqa: ARG001 - part of the cache key
    """Return the checksum of a data file; cached, because models are saved often and data is large."""
    return data_checksum(path)
