"""Dev data and metrics of a trainer's tasks, for evaluation during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.core.checks import raise_any
from palm.core.errors import ConfigError
from palm.engine.training.task import Task, wiring_problems
from palm.trainer.assembly import Forward

DevFiles = str | Path | Mapping[str, str | Path]
"""A data file with labels, or task -> file."""

Metrics = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of metrics, or task -> names."""


def give_dev_data(
    tasks: Sequence[Task],
    forwards: Mapping[str, Forward],
    dev_file: DevFiles | None,
    metrics: Metrics | None,
) -> None:
    """Tell tasks what they are evaluated on; where nothing is given, on nothing, and by the head's metrics.

    Args:
        tasks: those of a run.
        forwards: task -> its encoder and head.
        dev_file: data with labels; of several tasks, task -> file.
        metrics: names of metrics; of several tasks, task -> names.

    Raises:
        ConfigError: names that no task has, no names where there are several tasks, or metrics that do not
            fit.
    """
    names = [task.name for task in tasks]
    files = _by_task(dev_file, names, "dev_file") if dev_file is not None else {}
    chosen = _by_task(metrics, names, "metrics") if metrics is not None else {}
    problems: list[str] = []
    for task in tasks:
        task.dev_file = Path(files[task.name]) if task.name in files else None
        task.metrics = chosen.get(task.name)
        problems += wiring_problems(task, forwards[task.name].backbone)
    raise_any(problems)


def _by_task(value: Any, names: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the value of each task; a single task's may stand alone.

    Raises:
        ConfigError: names that no task has, or no names where there are several tasks.
    """
    if not isinstance(value, Mapping):
        if len(names) > 1:
            raise ConfigError(f"{what}: there are several tasks ({', '.join(names)}); give a dict of them")
        return {names[0]: value}
    if strange := [name for name in value if name not in names]:
        raise ConfigError(f"{what} names {', '.join(strange)}; there are {', '.join(names)}")
    return value
