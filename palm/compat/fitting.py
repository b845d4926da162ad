"""Construction of a task from a trainer's encoder, head, reader and dev data, as in PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.compat.assembly import Forward
from palm.compat.reader import base_reader
from palm.compat.reader.loading import LoadingReader
from palm.core.component import raise_any
from palm.core.errors import ConfigError, PalmError, WiringError
from palm.parallel.group import world_size
from palm.train.task import Task, wiring_problems

DevFiles = str | Path | Mapping[str, str | Path]
"""A data file with labels, or task -> file."""

Metrics = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of metrics, or task -> names."""


def task_of(
    name: str, reader: LoadingReader, forward: Forward, settings: Mapping[str, Any], for_train: bool = True
) -> Task:
    """Return the task of a trainer, without its data.

    Args:
        name: of the trainer.
        reader: after `load_data` and `register_with`.
        forward: the encoder and head of `build_forward` or `build_predict_forward`.
        settings: further arguments of `Task`.
        for_train: whether its head needs targets.

    Raises:
        PalmError: `register_with` was not called.
        ConfigError: the batch size is not a multiple of the number of devices, or a setting is out of range.
        WiringError: reader, backbone and head do not fit together.
    """
    loaded = reader.loaded
    if reader.get_registered_backbone() is None:
        raise PalmError(f"trainer {name!r}: call register_with(backbone) on its reader first")
    batch_size = loaded.batch_size
    if for_train and batch_size is not None:
        # A reader's batch_size is the total of all devices, as in PaddlePALM 2.x.
        if batch_size % world_size():
            raise ConfigError(
                f"load_data: batch_size {batch_size} should be a multiple of the {world_size()} devices"
            )
        batch_size //= world_size()
    if isinstance(reader, base_reader.Reader):
        # A reader of 2.x returns only requested tensors: here, those that the encoder does not compute.
        for tensor in {**forward.head.targets_attr, **forward.head.inputs_attr}:
            if tensor not in forward.backbone.outputs_attr:
                reader.require_attr(tensor)
    task = Task(
        name,
        reader,
        forward.head,
        batch_size=batch_size,
        max_tokens_per_batch=loaded.max_tokens_per_batch,
        train_file=loaded.path,
        shuffle=loaded.shuffle,
        **settings,
    )
    if problems := wiring_problems(task, forward.backbone, for_train):
        raise WiringError("\n".join(problems))
    return task


def set_dev_data(
    tasks: Sequence[Task],
    forwards: Mapping[str, Forward],
    dev_file: DevFiles | None,
    metrics: Metrics | None,
) -> None:
    """Set the dev data and metrics of tasks.

    Args:
        tasks: of a run.
        forwards: task -> its encoder and head.
        dev_file: data with labels; for several tasks, task -> file; None for no evaluation.
        metrics: names of metrics; for several tasks, task -> names; None for those of the heads.

    Raises:
        ConfigError: a task is unknown, tasks are not named although there are several, or metrics do not fit.
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
    """Return task -> value; the value of a single task need not be a mapping.

    Raises:
        ConfigError: a task is unknown, or tasks are not named although there are several.
    """
    if not isinstance(value, Mapping):
        if len(names) > 1:
            raise ConfigError(f"{what}: there are several tasks ({', '.join(names)}); give a dict by task")
        return {names[0]: value}
    if unknown := [name for name in value if name not in names]:
        raise ConfigError(f"{what} names {', '.join(unknown)}; known: {', '.join(names)}")
    return value
