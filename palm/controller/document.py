"""Self-contained configurations of some of the tasks of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.config import Config
from palm.config.layers import json_ready
from palm.controller.plan import Plan, TaskPlan
from palm.controller.settings import NO_RESULT, OF_SEVERAL, PER_TASK, marked
from palm.core.errors import DataError
from palm.core.io import wrap_read_errors
from palm.reader.tables.remote import is_url
from palm.reader.tables.selection import data_checksum

Document = dict[str, dict[str, Any]]
"""A configuration with the sections `global`, `tasks` and `backbone`, JSON-ready and with absolute paths."""

UNREAD_BY_TRAINING = ("pred_file", "pred_output_path", "pred_batch_size", "print_first_n")
"""Settings of a task that do not affect training."""


def document(config: Config, plan: Plan, tasks: Sequence[str], **changes: Any) -> Document:
    """Return the configuration of a run of some of the tasks.

    A global setting may be meant for one task, and be an error without it. So every task gets all settings
    that it uses, and the run only its own. A single task has no mixing.

    Args:
        config, plan: the configuration, and the settings that its components use.
        tasks, changes: the tasks to keep, and changed global settings; None for the default.
    """
    run = {**_of_run(config, plan, tasks), **changes}
    plans = {each.name: each for each in plan.tasks}
    found = {task: _of_task(config, plans[task]) for task in tasks}
    kept = {name: value for name, value in run.items() if value is not None}
    # Global settings take precedence, so a task's different value is repeated there.
    single = {
        f"{task}.{name}": value
        for task, settings in found.items()
        for name, value in settings.items()
        if name in kept and kept[name] != value
    }
    # Paths are absolute, so the result can be read from any folder.
    whole: Document = json_ready({"global": kept | single, "tasks": found, "backbone": plan.backbone[1]})
    return whole


def _of_run(config: Config, plan: Plan, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the global settings, including those of the run's components, reduced to these tasks."""
    run = {**plan.settings, **plan.optimizer[1], **plan.groups, **plan.schedule}
    if len(tasks) > 1:
        run |= plan.mixing[1]
        run |= {} if plan.balance is None else plan.balance[1]
    else:
        run |= dict.fromkeys(marked(OF_SEVERAL))
    # Lists with a value per task keep the values of the tasks that stay.
    for name in marked(PER_TASK):
        if run.get(name) is not None:
            run[name] = [run[name][config.tasks.index(task)] for task in tasks]
    for name in ("best_by", "mixing_references"):
        run[name] = _restrict(tasks, run.get(name))
    return {**run, "stages": None, "effort": None, "task_instance": list(tasks)}


def _restrict(tasks: Sequence[str], value: Any) -> Any:
    """Restrict a list of tasks, or a mapping from tasks, to these; None if nothing is left."""
    if isinstance(value, dict):
        return {task: each for task, each in value.items() if task in tasks} or None
    return [task for task in value or () if task in tasks] or None


def _of_task(config: Config, plan: TaskPlan) -> dict[str, Any]:
    components = {name: config.value(name, plan.name) for name in ("reader", "paradigm")}
    named = {name: setting.value for name, setting in components.items() if setting is not None}
    return {**named, **plan.head[1], **plan.reader[1], **plan.task}


def result_settings(settings: Document) -> dict[str, Any]:
    """Return the settings on which the scores of a run depend; they identify the run."""
    no_result = marked(NO_RESULT)
    kept = {name: value for name, value in settings["global"].items() if name not in no_result}
    tasks = {
        task: {name: value for name, value in own.items() if name not in UNREAD_BY_TRAINING}
        for task, own in settings["tasks"].items()
    }
    return {**kept, "tasks": tasks, "backbone": settings["backbone"]}


def data_checksums(plans: Iterable[Plan], more: Iterable[Path] = ()) -> dict[str, str]:
    """Return file -> half of its SHA-256 for every data file of runs.

    Args:
        plans: name the training and dev files; each file is read once.
        more: other files.
    """
    tasks = (each.task for plan in plans for each in plan.tasks)
    named = (task.get(name) for task in tasks for name in ("train_file", "dev_file"))
    given = (path for path in (*named, *more) if path is not None)
    paths = {path if is_url(path) else path.absolute() for path in given}
    return {str(path): data_checksum(path)[:32] for path in sorted(paths)}


def changed_data(checksums: Mapping[str, str]) -> list[str]:
    """Return the files whose content is no longer that of `data_checksums`.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    found = []
    for name, known in checksums.items():
        with wrap_read_errors(name, error=DataError):
            if data_checksum(Path(name))[:32] != known:
                found.append(name)
    return found
